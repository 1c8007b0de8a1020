-- The seed report's rules of thumb, per run: the slowest 1 % and the always-starved sessions, fallback over direct TTFT, admission calls a second.
WITH always_starved AS (
    SELECT session FROM sessions WHERE experiment = $experiment GROUP BY session HAVING bool_and(coalesce(starved, false))
),
slowest AS (
    SELECT replicate, quantile_cont(latency_s, 0.99) AS p99 FROM requests WHERE experiment = $experiment GROUP BY replicate
),
calls AS (
    SELECT replicate, count(*) AS n FROM admissions WHERE experiment = $experiment GROUP BY replicate
)
SELECT r.replicate, (SELECT count(*) FROM always_starved) AS starved_in_all,
    count(*) FILTER (latency_s >= p99 AND session IN (SELECT session FROM always_starved)) / nullif(count(*) FILTER (latency_s >= p99), 0) AS starved_share_of_slowest,
    avg(ttft_s) FILTER (path = 'fallback') / nullif(avg(ttft_s) FILTER (path = 'direct'), 0) AS fallback_over_direct_ttft,
    any_value(c.n) / nullif(any_value(u.duration_s), 0) AS admission_calls_per_second
FROM requests r JOIN slowest USING (replicate) JOIN runs u ON u.experiment = r.experiment AND u.replicate = r.replicate LEFT JOIN calls c ON c.replicate = r.replicate
WHERE r.experiment = $experiment GROUP BY r.replicate ORDER BY r.replicate
