-- One row a session of one run: how its turns were served.
SELECT s.session, s.requests AS turns, s.peak_input, s.direct_rate, p.direct, p.fallback, p.seed, p.dp, s.errors, p.truncated, s.decode_workers, p.first_due_t, p.last_answer_t
FROM sessions s JOIN (
    SELECT session, count(*) FILTER (path = 'direct') AS direct, count(*) FILTER (path = 'fallback') AS fallback,
        count(*) FILTER (path = 'seed') AS seed, count(*) FILTER (path = 'dp') AS dp, count(*) FILTER (status = 'truncated') AS truncated,
        min(scheduled_t) AS first_due_t, max(finished_t) AS last_answer_t
    FROM requests WHERE experiment = $experiment AND replicate = $replicate GROUP BY session
) p USING (session)
WHERE s.experiment = $experiment AND s.replicate = $replicate
ORDER BY s.peak_input DESC, s.session
