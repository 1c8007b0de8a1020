-- One row a replicate of one experiment, straight from requests.jsonl. Every figure as in views.sql, sql/headline.sql and sql/s1.sql (a test compares them).
WITH rows AS (
    SELECT *,
        CASE WHEN status = 'ok' THEN finished_t - dispatched_t END AS latency_s,
        CASE WHEN status = 'ok' THEN first_token_t - dispatched_t END AS ttft_s,
        CASE status WHEN 'ok' THEN finished_t - scheduled_t WHEN 'error' THEN 'inf'::DOUBLE END AS response_s,
        CASE status WHEN 'ok' THEN first_token_t - scheduled_t WHEN 'error' THEN 'inf'::DOUBLE END AS response_ttft_s
    FROM requests WHERE turn >= $warmup_turns
),
figures AS (
    SELECT replicate, count(*) AS requests, count(*) FILTER (status = 'error') AS errors, errors / requests AS error_rate,
        count(*) FILTER (bootstrap_room IS NOT NULL) AS transfers,
        avg(latency_s) AS latency_mean, quantile_cont(latency_s, 0.5) AS latency_p50, quantile_cont(latency_s, 0.9) AS latency_p90,
        quantile_cont(latency_s, 0.99) AS latency_p99,
        avg(ttft_s) AS ttft_mean, quantile_cont(ttft_s, 0.5) AS ttft_p50, quantile_cont(ttft_s, 0.9) AS ttft_p90, quantile_cont(ttft_s, 0.99) AS ttft_p99,
        avg(response_s) FILTER (status = 'ok') AS response_mean, quantile_cont(response_s, 0.5) AS response_p50,
        quantile_cont(response_s, 0.9) AS response_p90, quantile_cont(response_s, 0.99) AS response_p99,
        quantile_cont(response_ttft_s, 0.5) AS response_ttft_p50, quantile_cont(response_ttft_s, 0.99) AS response_ttft_p99,
        coalesce(sum(output_tokens) FILTER (status = 'ok'), 0)::BIGINT AS answered_tokens,
        count(*) FILTER (path = 'direct') / nullif(count(*) FILTER (turn > 0 AND path <> 'dp'), 0) AS direct_rate
    FROM rows GROUP BY replicate
),
sessions AS (
    SELECT replicate, count(*) FILTER (disaggregated AND follow_ups > 0 AND direct * 5 // follow_ups = 0) AS starved_sessions, max(homes) AS homes_max
    FROM (
        SELECT replicate, session, bool_or(path <> 'dp') AS disaggregated, count(*) FILTER (turn > 0) AS follow_ups,
            count(*) FILTER (turn > 0 AND path = 'direct') AS direct, count(DISTINCT decode_worker) AS homes
        FROM rows GROUP BY replicate, session
    ) GROUP BY replicate
)
SELECT figures.*, starved_sessions, homes_max FROM figures JOIN sessions USING (replicate) ORDER BY replicate
