-- P's errors are instant rejections after one failed send latched the link, not repeated timeouts.
WITH link AS MATERIALIZED (
    FROM links
),
long AS (
    SELECT experiment, replicate, prefill_worker || '>' || decode_worker AS scope, attempts AS n, real_failures, rejections, successes_after_latch FROM link
)
SELECT metric, experiment, replicate, scope, value::DOUBLE AS value, 'rooms' AS unit, n
FROM (UNPIVOT long ON real_failures, rejections, successes_after_latch INTO NAME metric VALUE value)
UNION ALL BY NAME
SELECT 'rejection_share' AS metric, experiment, replicate, count(*) FILTER (outcome = 'rejection') / count(*) AS value, 'of failed rooms' AS unit, count(*) AS n
FROM attempts WHERE transfer_failed GROUP BY experiment, replicate
UNION ALL BY NAME
SELECT 'successes_after_latch' AS metric, experiment, NULL AS replicate, sum(successes_after_latch) AS value, 'rooms' AS unit, count(DISTINCT replicate) AS n
FROM link GROUP BY experiment HAVING sum(real_failures) > 0
