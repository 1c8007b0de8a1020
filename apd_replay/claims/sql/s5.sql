-- P is picked round-robin, blind to D's health, so one P's link fails for good.
WITH chosen AS (
    SELECT experiment, replicate, prefill_worker AS worker, count(*)::DOUBLE AS requests
    FROM requests WHERE prefill_worker IS NOT NULL GROUP BY ALL
),
tried AS (
    SELECT experiment, replicate, prefill_worker AS worker, count(*) AS attempts,
        count(*) FILTER (transfer_failed) AS failed, count(*) FILTER (outcome = 'rejection') AS rejected
    FROM attempts GROUP BY ALL
),
per_p AS (
    SELECT c.*, coalesce(attempts, 0) AS attempts, coalesce(failed, 0)::DOUBLE AS failed_rooms, coalesce(rejected, 0)::DOUBLE AS rejections,
        (failed + 0.5) / attempts AS failure_rate
    FROM chosen c LEFT JOIN tried USING (experiment, replicate, worker)
)
SELECT metric, experiment, replicate, worker AS scope, value, if(metric = 'requests', 'requests', 'rooms') AS unit, attempts AS n
FROM (UNPIVOT per_p ON requests, failed_rooms, rejections INTO NAME metric VALUE value)
UNION ALL BY NAME
SELECT 'failed_rooms' AS metric, experiment, replicate, prefill_worker || '>' || decode_worker AS scope, count(*) FILTER (transfer_failed) AS value,
    'rooms' AS unit, count(*) AS n
FROM attempts WHERE prefill_worker IS NOT NULL AND decode_worker IS NOT NULL GROUP BY ALL
UNION ALL BY NAME
-- Worst over best P, failures per attempt, 0.5 added to both counts; a run without any failure says nothing.
SELECT 'failure_ratio' AS metric, experiment, replicate, max(failure_rate) / min(failure_rate) AS value, 'ratio' AS unit, sum(attempts) AS n
FROM per_p WHERE attempts > 0 GROUP BY experiment, replicate HAVING count(*) > 1 AND sum(failed_rooms) > 0
