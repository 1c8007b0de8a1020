-- Admission calls run inside the scheduler's loop and disturb decoding.
SELECT 'admission_latency_p50' AS metric, experiment, replicate, decode_worker AS scope, quantile_cont(latency_s, 0.5) AS value, 's' AS unit, count(*) AS n
FROM admissions WHERE latency_s IS NOT NULL GROUP BY ALL
UNION ALL BY NAME
SELECT 'admission_latency_p99' AS metric, experiment, replicate, decode_worker AS scope, quantile_cont(latency_s, 0.99) AS value, 's' AS unit, count(*) AS n
FROM admissions WHERE latency_s IS NOT NULL GROUP BY ALL
UNION ALL BY NAME
-- A decode step gives every running request one token: its time is the batch over the throughput.
SELECT 'step_time_p50' AS metric, experiment, replicate, NULL AS scope, quantile_cont(1000 * running / throughput, 0.5) AS value, 'ms' AS unit, count(*) AS n
FROM worker_samples WHERE kind = 'decode' AND running > 0 AND throughput > 0 GROUP BY ALL
