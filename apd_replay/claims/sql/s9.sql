-- One slow D delays the other D's of its transfer shard on a P.
-- A stall: a transfer that really failed, from its dispatch to its end. Beside it: what the same P sent to other D's meanwhile.
WITH stalls AS (
    SELECT * FROM attempts WHERE outcome = 'real_failure' AND shard IS NOT NULL
),
beside AS (
    SELECT a.experiment, a.replicate, a.shard = s.shard AS same_shard, a.first_token_t - a.dispatched_t AS delay
    FROM stalls s JOIN attempts a
        ON a.experiment = s.experiment AND a.replicate = s.replicate AND a.prefill_worker = s.prefill_worker AND a.decode_worker <> s.decode_worker
        AND a.dispatched_t BETWEEN s.dispatched_t AND s.finished_t
    WHERE a.outcome = 'ok' AND a.shard IS NOT NULL
),
delays AS (
    SELECT experiment, replicate, same_shard, quantile_cont(delay, 0.5) AS delay, count(*) AS n FROM beside GROUP BY ALL
)
SELECT 'shard_delay_p50' AS metric, experiment, replicate, if(same_shard, 'same shard', 'other shard') AS scope, delay AS value, 's' AS unit, n FROM delays
UNION ALL BY NAME
SELECT 'shard_delay_ratio' AS metric, experiment, replicate, any_value(delay) FILTER (same_shard) / any_value(delay) FILTER (NOT same_shard) AS value,
    'ratio' AS unit, sum(n) AS n
FROM delays GROUP BY experiment, replicate HAVING count(*) = 2
