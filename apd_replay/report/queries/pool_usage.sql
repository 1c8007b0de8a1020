-- KV pool usage of each D in steps of $step seconds, from its own batch lines.
SELECT worker, floor(greatest(t, 0) / $step) * $step AS t, min(token_usage) AS low, max(token_usage) AS high
FROM worker_samples
WHERE experiment = $experiment AND replicate = $replicate AND worker LIKE 'decode-%' AND t IS NOT NULL AND token_usage IS NOT NULL
GROUP BY ALL ORDER BY worker, t
