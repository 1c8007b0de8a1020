-- N = 1 is not credible: replicates of one configuration differ.
WITH figures AS (
    SELECT experiment, replicate, count(*)::INTEGER AS n,
        count(*) FILTER (status = 'error')::DOUBLE AS errors,
        quantile_cont(latency_s, 0.5) AS latency_p50,
        quantile_cont(latency_s, 0.9) AS latency_p90,
        quantile_cont(ttft_s, 0.5) AS ttft_p50
    FROM requests GROUP BY experiment, replicate
),
long AS (
    UNPIVOT figures ON errors, latency_p50, latency_p90, ttft_p50 INTO NAME metric VALUE value
)
SELECT metric, experiment, replicate, NULL AS scope, value, if(metric = 'errors', 'requests', 's') AS unit, n FROM long
UNION ALL BY NAME
-- max / min; replicates without any error do not differ, and one without against one with differs without bound
SELECT 'spread' AS metric, experiment, NULL AS replicate, metric AS scope,
    CASE WHEN max(value) = 0 THEN 1 WHEN min(value) = 0 THEN 'inf'::DOUBLE ELSE max(value) / min(value) END AS value,
    'max / min' AS unit, count(*) AS n
FROM long GROUP BY experiment, metric
