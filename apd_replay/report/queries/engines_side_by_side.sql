-- The same experiment on the same trace, simulated and real: means over replicates of what requests took.
WITH figures AS (
    SELECT r.experiment, r.replicate, u.engine, u.trace_digest, split_part(r.experiment, '@', 1) AS base,
        avg(r.latency_s) AS latency_mean,
        quantile_cont(r.latency_s, 0.5) AS latency_p50,
        quantile_cont(r.latency_s, 0.99) AS latency_p99,
        avg(r.ttft_s) AS ttft_mean,
        quantile_cont(r.ttft_s, 0.5) AS ttft_p50,
        count(*) FILTER (r.status = 'error') / count(*) AS error_rate
    FROM requests r JOIN runs u USING (experiment, replicate)
    WHERE u.engine IN ('sim', 'sglang') GROUP BY ALL
),
long AS (
    UNPIVOT figures ON latency_mean, latency_p50, latency_p99, ttft_mean, ttft_p50, error_rate INTO NAME metric VALUE value
)
SELECT base, trace_digest, metric,
    avg(value) FILTER (engine = 'sglang') AS real, count(DISTINCT replicate) FILTER (engine = 'sglang') AS real_n,
    avg(value) FILTER (engine = 'sim') AS simulated, count(DISTINCT replicate) FILTER (engine = 'sim') AS simulated_n,
    avg(value) FILTER (engine = 'sim') - avg(value) FILTER (engine = 'sglang') AS difference,
    avg(value) FILTER (engine = 'sim') / nullif(avg(value) FILTER (engine = 'sglang'), 0) - 1 AS relative_error
FROM long GROUP BY base, trace_digest, metric
HAVING real_n > 0 AND simulated_n > 0 ORDER BY base, trace_digest, metric
