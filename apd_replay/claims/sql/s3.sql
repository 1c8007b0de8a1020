-- Without a channel from D to the replay, overload becomes a storm of 32 s transfer timeouts.
WITH failed AS (
    SELECT experiment, replicate, count(*) AS n,
        count(*)::DOUBLE AS failed_rooms,
        min(finished_t) AS first_t,
        quantile_cont(finished_t - dispatched_t, 0.5) AS wait_p50,
        max(finished_t - dispatched_t) AS wait_max,
        count(*) FILTER (finished_t - dispatched_t >= 30)::DOUBLE AS waited_30s,
        waited_30s / failed_rooms AS waited_30s_share
    FROM attempts WHERE transfer_failed GROUP BY ALL
),
runs_of_pd AS (
    SELECT experiment, replicate, count(*) AS n, quantile_cont(latency_s, 0.99) AS latency_p99,
        (count(*) FILTER (status = 'error') + 0.5) / count(*) AS failure_rate
    FROM requests WHERE path <> 'dp' GROUP BY ALL
)
SELECT 'failed_rooms' AS metric, experiment, replicate, NULL AS scope, coalesce(failed_rooms, 0) AS value, 'rooms' AS unit, r.n
FROM runs_of_pd r LEFT JOIN failed USING (experiment, replicate)
UNION ALL BY NAME
SELECT 'first_error_fraction' AS metric, experiment, replicate, first_t / duration_s AS value, 'of the run' AS unit, n
FROM failed JOIN runs USING (experiment, replicate) WHERE duration_s > 0
UNION ALL BY NAME
SELECT metric, experiment, replicate, value, n, CASE metric WHEN 'waited_30s' THEN 'rooms' WHEN 'waited_30s_share' THEN 'of failed rooms' ELSE 's' END AS unit
FROM (UNPIVOT failed ON wait_p50, wait_max, waited_30s, waited_30s_share INTO NAME metric VALUE value)
UNION ALL BY NAME
SELECT metric, experiment, replicate, value, n, if(metric = 'latency_p99', 's', 'of requests, 0.5 added') AS unit
FROM (UNPIVOT runs_of_pd ON latency_p99, failure_rate INTO NAME metric VALUE value)
UNION ALL BY NAME
SELECT 'pauses' AS metric, experiment, replicate, decode_worker AS scope, count(*) AS value, 'pauses' AS unit, count(*) AS n FROM pauses GROUP BY ALL
UNION ALL BY NAME
SELECT 'pause_s' AS metric, experiment, replicate, decode_worker AS scope, sum(sleep_ms) / 1000 AS value, 's' AS unit, count(*) AS n FROM pauses GROUP BY ALL
