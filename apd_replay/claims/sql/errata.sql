-- The seed documents' own sums and rules of thumb, done again.
WITH run_figures AS (
    SELECT experiment, replicate, engine, trace, count(*) AS requests, count(*) FILTER (q.status = 'error') AS errors,
        avg(latency_s) AS latency_mean, avg(ttft_s) AS ttft_mean, quantile_cont(ttft_s, 0.5) AS ttft_p50
    FROM requests q JOIN runs USING (experiment, replicate) WHERE part(experiment) IN ('E0', 'E6') GROUP BY ALL
),
-- Means over runs, as the seed documents form them: E0 against the E6 of the same engine and trace.
over_runs AS (
    SELECT k.experiment, count(*) AS n, sum(k.errors) / sum(k.requests) AS error_share,
        avg(k.latency_mean) / any_value(d.latency_mean) - 1 AS latency_mean_change,
        avg(k.ttft_mean) / any_value(d.ttft_mean) AS ttft_mean_ratio,
        min(k.ttft_p50) / any_value(d.ttft_p50) AS best_ttft_p50_ratio
    FROM run_figures k
    LEFT JOIN (
        SELECT engine, trace, avg(latency_mean) AS latency_mean, avg(ttft_mean) AS ttft_mean, avg(ttft_p50) AS ttft_p50
        FROM run_figures WHERE part(experiment) = 'E6' GROUP BY ALL
    ) d USING (engine, trace)
    WHERE part(k.experiment) = 'E0' GROUP BY k.experiment
),
always_starved AS (
    SELECT experiment, session FROM sessions WHERE disaggregated GROUP BY ALL HAVING bool_and(coalesce(starved, false))
),
slowest AS (
    SELECT r.experiment, r.replicate, count(*) AS n, count(s.session) AS starved
    FROM requests r
    JOIN (SELECT experiment, replicate, quantile_cont(latency_s, 0.99) AS p99 FROM requests GROUP BY ALL) USING (experiment, replicate)
    LEFT JOIN always_starved s ON s.experiment = r.experiment AND s.session = r.session
    WHERE r.latency_s >= p99 AND r.path <> 'dp' GROUP BY ALL
),
paths AS (
    SELECT experiment, replicate, avg(latency_s) FILTER (path = 'fallback') AS fallback, avg(latency_s) FILTER (path = 'direct') AS direct,
        avg(ttft_s) FILTER (path = 'fallback') AS fallback_ttft, avg(ttft_s) FILTER (path = 'direct') AS direct_ttft, count(*) AS n
    FROM requests WHERE path <> 'dp' AND status = 'ok' GROUP BY ALL
)
SELECT metric, experiment, NULL AS replicate, NULL AS scope, value, n,
    CASE metric WHEN 'error_share' THEN 'of requests' WHEN 'latency_mean_change' THEN 'change' ELSE 'ratio' END AS unit
FROM (UNPIVOT over_runs ON error_share, latency_mean_change, ttft_mean_ratio, best_ttft_p50_ratio INTO NAME metric VALUE value)
UNION ALL BY NAME
SELECT 'fallback_over_direct_latency' AS metric, experiment, replicate, fallback / direct AS value, 'ratio' AS unit, n FROM paths WHERE fallback / direct IS NOT NULL
UNION ALL BY NAME
SELECT 'fallback_over_direct_ttft' AS metric, experiment, replicate, fallback_ttft / direct_ttft AS value, 'ratio' AS unit, n FROM paths WHERE fallback_ttft / direct_ttft IS NOT NULL
UNION ALL BY NAME
SELECT 'p99_share_of_starved' AS metric, experiment, replicate, starved / n AS value, 'of the slowest 1 %' AS unit, n FROM slowest
UNION ALL BY NAME
SELECT 'admission_calls_per_second' AS metric, experiment, replicate, count(*) / any_value(duration_s) AS value, '1/s' AS unit, count(*) AS n
FROM admissions JOIN runs USING (experiment, replicate) WHERE duration_s > 0 GROUP BY experiment, replicate
