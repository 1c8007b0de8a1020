-- Time-scale 10 squeezes the gaps in which D could drain.
WITH replayed AS (
    SELECT experiment, replicate, session, turn,
        scheduled_t - lag(finished_t) OVER (PARTITION BY experiment, replicate, session ORDER BY turn) AS gap_s
    FROM requests
),
-- The same turns of the trace, so that a run of fewer sessions is compared with those.
pairs AS (
    SELECT r.experiment, r.replicate, r.gap_s AS replay, t.gap_s AS trace
    FROM replayed r JOIN runs USING (experiment, replicate) JOIN turns t ON t.trace = runs.trace AND t.session = r.session AND t.turn = r.turn
    WHERE r.gap_s IS NOT NULL AND t.gap_s IS NOT NULL
),
gaps AS (
    UNPIVOT pairs ON trace, replay INTO NAME scope VALUE gap_s
),
quantiles AS (
    SELECT experiment, replicate, scope, count(*) AS n, quantile_cont(gap_s, 0.1) AS gap_p10, quantile_cont(gap_s, 0.5) AS gap_p50,
        quantile_cont(gap_s, 0.9) AS gap_p90, quantile_cont(gap_s, 0.99) AS gap_p99, max(gap_s) AS gap_max
    FROM gaps GROUP BY ALL
),
long AS (
    UNPIVOT quantiles ON gap_p10, gap_p50, gap_p90, gap_p99, gap_max INTO NAME metric VALUE value
),
figures AS (
    SELECT experiment, replicate, count(*) AS n, avg(response_s) FILTER (status = 'ok') AS response_mean,
        (count(*) FILTER (status = 'error') + 0.5) / count(*) AS failure_rate,
        (SELECT avg(direct_rate) FROM sessions s WHERE s.experiment = r.experiment AND s.replicate = r.replicate) AS direct_rate
    FROM requests r GROUP BY experiment, replicate
)
SELECT metric, experiment, replicate, scope, value, 's' AS unit, n FROM long
UNION ALL BY NAME
-- Largest relative deviation of replay gap x S from the trace's, over the quantiles; to nine digits, where the floats' own errors begin.
SELECT 'gap_distortion' AS metric, t.experiment, t.replicate, round(max(abs(r.value * s.gap_scale / t.value - 1)), 9) AS value, 'ratio' AS unit, any_value(t.n) AS n
FROM long t JOIN long r ON r.experiment = t.experiment AND r.replicate = t.replicate AND r.metric = t.metric AND r.scope = 'replay'
JOIN run_settings s ON s.experiment = t.experiment AND s.replicate = t.replicate
WHERE t.scope = 'trace' AND t.value > 0 GROUP BY t.experiment, t.replicate
UNION ALL BY NAME
SELECT metric, experiment, replicate, value, n, CASE metric WHEN 'response_mean' THEN 's' WHEN 'direct_rate' THEN 'of follow-ups' ELSE 'of requests, 0.5 added' END AS unit
FROM (UNPIVOT figures ON response_mean, failure_rate, direct_rate INTO NAME metric VALUE value)
