-- Every KV transfer that one run tried on its link P > D, with its outcome and when it was known.
SELECT prefill_worker, decode_worker, outcome, coalesce(first_token_t, finished_t) AS ended_t
FROM attempts
WHERE experiment = $experiment AND replicate = $replicate AND prefill_worker IS NOT NULL AND decode_worker IS NOT NULL AND ended_t IS NOT NULL
ORDER BY prefill_worker, decode_worker, ended_t, room
