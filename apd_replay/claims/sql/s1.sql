-- Sessions are pinned to one D for ever, chosen blind to capacity, so direct-to-D is bimodal and large sessions starve.
WITH d AS (
    SELECT * FROM sessions WHERE disaggregated
),
rates AS (
    SELECT * FROM d WHERE direct_fifth IS NOT NULL
),
per_run AS (
    SELECT experiment, replicate, count(*) AS sessions, count(*) FILTER (starved) AS starved,
        count(*) FILTER (direct_fifth IN (0, 4)) / count(*) AS end_bins_share
    FROM rates GROUP BY ALL
),
bins AS (
    SELECT p.experiment, p.replicate, b.fifth, b.scope, count(r.session) AS sessions
    FROM per_run p CROSS JOIN (VALUES (0, '0-20'), (1, '20-40'), (2, '40-60'), (3, '60-80'), (4, '80-100')) b(fifth, scope)
    LEFT JOIN rates r ON r.experiment = p.experiment AND r.replicate = p.replicate AND r.direct_fifth = b.fifth
    GROUP BY ALL
),
-- Sessions that had the same fate in every run; expected: how many would be starved in all if runs were independent of the session.
constant AS (
    SELECT experiment, session, avg(peak_input) AS peak_input, bool_and(starved) AS starved, bool_and(lucky) AS lucky
    FROM rates JOIN (SELECT experiment, count(*) AS runs FROM per_run GROUP BY ALL) USING (experiment)
    GROUP BY experiment, session, runs HAVING count(*) = runs
),
expected AS (
    SELECT experiment, count(*) AS runs, avg(sessions) * product(starved / sessions) AS starved FROM per_run GROUP BY ALL
),
over_runs AS (
    SELECT c.experiment, any_value(e.runs) AS runs,
        count(*) FILTER (c.starved)::DOUBLE AS starved_in_all,
        count(*) FILTER (c.lucky)::DOUBLE AS lucky_in_all,
        avg(c.peak_input) FILTER (c.starved) AS starved_peak_input_mean,
        avg(c.peak_input) FILTER (c.lucky) AS lucky_peak_input_mean,
        starved_peak_input_mean / lucky_peak_input_mean AS peak_input_ratio,
        any_value(e.starved) AS starved_in_all_expected,
        CASE WHEN starved_in_all_expected > 0 THEN starved_in_all / starved_in_all_expected END AS starved_over_expected
    FROM constant c JOIN expected e USING (experiment) GROUP BY c.experiment
),
paths AS (
    SELECT experiment, replicate, path, count(*) FILTER (status = 'ok') AS n, avg(latency_s) AS latency_mean, avg(ttft_s) AS ttft_mean
    FROM requests WHERE path <> 'dp' GROUP BY ALL
)
SELECT 'distinct_decode_workers_mean' AS metric, experiment, replicate, NULL AS scope, avg(decode_workers) AS value, 'D' AS unit, count(*) AS n
FROM d GROUP BY ALL
UNION ALL BY NAME
SELECT 'direct_rate_bin' AS metric, experiment, replicate, scope, sessions AS value, 'sessions' AS unit, sessions AS n FROM bins
UNION ALL BY NAME
SELECT 'end_bins_share' AS metric, experiment, replicate, end_bins_share AS value, 'of sessions' AS unit, sessions AS n FROM per_run
UNION ALL BY NAME
SELECT 'starved_sessions' AS metric, experiment, replicate, starved AS value, 'sessions' AS unit, sessions AS n FROM per_run
UNION ALL BY NAME
SELECT metric, experiment, value, runs AS n,
    CASE WHEN metric LIKE '%peak_input_mean' THEN 'tokens' WHEN metric LIKE '%in_all%' THEN 'sessions' ELSE 'ratio' END AS unit
FROM (
    UNPIVOT over_runs ON starved_in_all, lucky_in_all, starved_peak_input_mean, lucky_peak_input_mean, peak_input_ratio,
        starved_in_all_expected, starved_over_expected INTO NAME metric VALUE value
)
UNION ALL BY NAME
SELECT metric, experiment, replicate, path AS scope, value, 's' AS unit, n
FROM (UNPIVOT paths ON latency_mean, ttft_mean INTO NAME metric VALUE value)
UNION ALL BY NAME
SELECT 'fallback_over_direct_latency' AS metric, experiment, replicate,
    any_value(latency_mean) FILTER (path = 'fallback') / any_value(latency_mean) FILTER (path = 'direct') AS value, 'ratio' AS unit, sum(n) AS n
FROM paths GROUP BY experiment, replicate
