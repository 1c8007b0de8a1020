-- Macros for ad-hoc SQL: `SELECT * FROM latency_quantiles('E0')`.

CREATE MACRO part(experiment) AS split_part(experiment, '@', 1);

-- Latency and response at P50, P90, P99 and in the mean, per replicate.
CREATE MACRO latency_quantiles(experiment_id) AS TABLE
SELECT replicate, count(*) AS requests, count(*) FILTER (status = 'error') AS errors,
    avg(latency_s) AS latency_mean, quantile_cont(latency_s, 0.5) AS latency_p50, quantile_cont(latency_s, 0.9) AS latency_p90, quantile_cont(latency_s, 0.99) AS latency_p99,
    avg(ttft_s) AS ttft_mean, quantile_cont(ttft_s, 0.5) AS ttft_p50, quantile_cont(ttft_s, 0.9) AS ttft_p90, quantile_cont(ttft_s, 0.99) AS ttft_p99,
    quantile_cont(response_s, 0.5) AS response_p50, quantile_cont(response_s, 0.9) AS response_p90, quantile_cont(response_s, 0.99) AS response_p99
FROM requests WHERE experiment = experiment_id GROUP BY replicate ORDER BY replicate;

-- Direct-to-D rate of every session, per replicate.
CREATE MACRO direct_rates(experiment_id) AS TABLE
SELECT replicate, session, follow_ups, direct, direct_rate, peak_input
FROM sessions WHERE experiment = experiment_id AND direct_rate IS NOT NULL ORDER BY replicate, session;

-- Sessions below 20 % direct in every replicate.
CREATE MACRO starved_sessions(experiment_id) AS TABLE
SELECT session, max(direct_rate) AS highest_rate, avg(peak_input) AS peak_input, count(*) AS replicates
FROM sessions WHERE experiment = experiment_id
GROUP BY session HAVING bool_and(coalesce(starved, false)) ORDER BY peak_input DESC;

-- Links P > D of an experiment that ever failed.
CREATE MACRO failed_links(experiment_id) AS TABLE
SELECT replicate, prefill_worker || '>' || decode_worker AS link, * EXCLUDE (experiment, replicate, prefill_worker, decode_worker)
FROM links WHERE experiment = experiment_id AND real_failures + rejections > 0 ORDER BY replicate, link;
