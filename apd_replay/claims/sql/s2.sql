-- D's LRU evicts idle sessions only, and cannot keep up: transfers fail on D's that are full while it trims.
WITH workers AS (
    SELECT DISTINCT experiment, replicate, decode_worker AS worker FROM requests WHERE path <> 'dp' AND decode_worker IS NOT NULL
),
logged AS (
    SELECT DISTINCT experiment, replicate, worker FROM log_files
    UNION SELECT DISTINCT experiment, replicate, worker FROM worker_samples
    UNION SELECT DISTINCT experiment, replicate, worker FROM worker_events
),
trims AS (
    SELECT experiment, replicate, worker, count(*) AS events FROM worker_events WHERE kind = 'trim' GROUP BY ALL
),
peaks AS (
    SELECT experiment, replicate, worker, max(token_usage) AS peak FROM worker_samples GROUP BY ALL
),
failed AS (
    SELECT experiment, replicate, decode_worker AS worker, count(*) AS rooms FROM attempts WHERE transfer_failed GROUP BY ALL
),
-- Without its log a D's trims and peak are unknown, not 0.
per_d AS (
    SELECT w.experiment, w.replicate, w.worker, coalesce(f.rooms, 0)::DOUBLE AS failed_rooms,
        CASE WHEN l.worker IS NOT NULL THEN coalesce(t.events, 0)::DOUBLE END AS trims,
        p.peak AS peak_token_usage,
        CASE WHEN trims > 0 THEN failed_rooms / trims WHEN trims = 0 AND failed_rooms > 0 THEN 'inf'::DOUBLE END AS failed_per_trim
    FROM workers w
    LEFT JOIN logged l USING (experiment, replicate, worker)
    LEFT JOIN trims t USING (experiment, replicate, worker)
    LEFT JOIN peaks p USING (experiment, replicate, worker)
    LEFT JOIN failed f USING (experiment, replicate, worker)
)
SELECT metric, experiment, replicate, worker AS scope, value, 1 AS n,
    CASE metric WHEN 'trims' THEN 'events' WHEN 'failed_rooms' THEN 'rooms' WHEN 'peak_token_usage' THEN 'of the pool' ELSE 'ratio' END AS unit
FROM (UNPIVOT per_d ON trims, failed_rooms, peak_token_usage, failed_per_trim INTO NAME metric VALUE value)
UNION ALL BY NAME
SELECT 'overrun_share' AS metric, experiment, replicate, count(*) FILTER (peak_token_usage >= 0.95 AND failed_rooms > trims) / count(*) AS value,
    'of D''s' AS unit, count(*) AS n
FROM per_d WHERE trims IS NOT NULL AND peak_token_usage IS NOT NULL GROUP BY experiment, replicate
