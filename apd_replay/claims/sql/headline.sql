-- KVC loses to DP on the same trace.
WITH figures AS (
    SELECT experiment, replicate, count(*) AS n,
        count(*) FILTER (status = 'error')::DOUBLE AS errors, errors / n AS error_rate,
        avg(latency_s) AS latency_mean, quantile_cont(latency_s, 0.5) AS latency_p50, quantile_cont(latency_s, 0.9) AS latency_p90,
        quantile_cont(latency_s, 0.99) AS latency_p99,
        avg(ttft_s) AS ttft_mean, quantile_cont(ttft_s, 0.5) AS ttft_p50, quantile_cont(ttft_s, 0.9) AS ttft_p90, quantile_cont(ttft_s, 0.99) AS ttft_p99,
        avg(response_s) FILTER (status = 'ok') AS response_mean, quantile_cont(response_s, 0.5) AS response_p50,
        quantile_cont(response_s, 0.9) AS response_p90, quantile_cont(response_s, 0.99) AS response_p99,
        avg(response_ttft_s) FILTER (status = 'ok') AS response_ttft_mean, quantile_cont(response_ttft_s, 0.5) AS response_ttft_p50,
        quantile_cont(tpot_s, 0.5) AS tpot_p50,
        count(*) FILTER (response_ttft_s <= slo_ttft_s AND coalesce(tpot_s, 0) <= slo_tpot_s) / any_value(duration_s) AS goodput,
        sum(output_tokens) FILTER (status = 'ok') / any_value(duration_s) AS throughput
    FROM requests JOIN run_settings USING (experiment, replicate) JOIN (SELECT experiment, replicate, nullif(duration_s, 0) AS duration_s FROM runs) USING (experiment, replicate)
    GROUP BY experiment, replicate
)
SELECT metric, experiment, replicate, NULL AS scope, value, n,
    CASE metric WHEN 'errors' THEN 'requests' WHEN 'error_rate' THEN 'of requests' WHEN 'goodput' THEN 'requests/s' WHEN 'throughput' THEN 'tokens/s' ELSE 's' END AS unit
FROM (
    UNPIVOT figures ON errors, error_rate, latency_mean, latency_p50, latency_p90, latency_p99, ttft_mean, ttft_p50, ttft_p90, ttft_p99,
        response_mean, response_p50, response_p90, response_p99, response_ttft_mean, response_ttft_p50, tpot_p50, goodput, throughput
        INTO NAME metric VALUE value
)
UNION ALL BY NAME
SELECT 'session_completion_p50' AS metric, experiment, replicate, quantile_cont(completion_s, 0.5) AS value, 's' AS unit, count(*) AS n
FROM sessions WHERE completion_s IS NOT NULL GROUP BY experiment, replicate
