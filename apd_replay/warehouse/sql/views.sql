-- Views over the run tables (`all_requests`, `transfers`, ... are made from schemas.py, over the Parquet files of the runs that the manifests name).

-- What the analysis needs of a run's configuration, with the defaults of config/schema/experiment.yaml where a run does not say.
CREATE VIEW run_settings AS
SELECT experiment, replicate,
    coalesce(try_cast(settings ->> '$.warmup_turns' AS INTEGER), 0) AS warmup_turns,
    coalesce(try_cast(settings ->> '$.gap_scale' AS DOUBLE), time_scale) AS gap_scale,
    coalesce(try_cast(settings ->> '$.slo_ttft_s' AS DOUBLE), 2.0) AS slo_ttft_s,
    coalesce(try_cast(settings ->> '$.slo_tpot_s' AS DOUBLE), 0.1) AS slo_tpot_s
FROM (SELECT *, coalesce(config -> '$.settings', config) AS settings FROM runs);

-- Requests without the warm-up turns. latency_s and ttft_s: what the server did, of answered requests only.
-- response_s and response_ttft_s: what the agent felt, from the time the turn was due; infinite where it failed, null where it was cut
-- and where an imported run does not say when it was due. Imported clients without times state latencies themselves.
-- tpot_s: time per output token behind the first. elapsed_s: dispatch to end, whatever the outcome.
CREATE VIEW requests AS
SELECT r.*,
    coalesce(finished_t - dispatched_t, reported_latency_s) AS elapsed_s,
    CASE WHEN status = 'ok' THEN elapsed_s END AS latency_s,
    CASE WHEN status = 'ok' THEN coalesce(first_token_t - dispatched_t, reported_ttft_s) END AS ttft_s,
    CASE WHEN scheduled_t IS NOT NULL THEN CASE status WHEN 'ok' THEN finished_t - scheduled_t WHEN 'error' THEN 'inf'::DOUBLE END END AS response_s,
    CASE WHEN scheduled_t IS NOT NULL THEN CASE status WHEN 'ok' THEN first_token_t - scheduled_t WHEN 'error' THEN 'inf'::DOUBLE END END AS response_ttft_s,
    CASE WHEN output_tokens > 1 THEN (latency_s - ttft_s) / (output_tokens - 1) END AS tpot_s
FROM all_requests r JOIN run_settings s USING (experiment, replicate)
WHERE r.turn >= s.warmup_turns;

-- One row a session of a run. direct_rate: direct follow-up turns over all follow-up turns, failed ones included; null without follow-ups
-- and on a cluster without D's. completion_s: first due time to last answer; null where the session was cut.
CREATE VIEW sessions AS
SELECT *,
    CASE WHEN disaggregated AND follow_ups > 0 THEN direct / follow_ups END AS direct_rate,
    CASE WHEN disaggregated AND follow_ups > 0 THEN least(direct * 5 // follow_ups, 4) END AS direct_fifth,
    direct_fifth = 0 AS starved,
    direct_fifth = 4 AS lucky
FROM (
    SELECT experiment, replicate, session, count(*) AS requests,
        count(*) FILTER (turn > 0) AS follow_ups,
        count(*) FILTER (turn > 0 AND path = 'direct') AS direct,
        count(*) FILTER (status = 'error') AS errors,
        count(DISTINCT decode_worker) AS decode_workers,
        max(input_tokens) AS peak_input,
        CASE WHEN count(*) FILTER (status = 'truncated') = 0 THEN max(finished_t) - min(scheduled_t) END AS completion_s,
        bool_or(path <> 'dp') AS disaggregated
    FROM requests GROUP BY ALL
);

-- One row a KV transfer that was tried: a request with a bootstrap room. The P's log tells a real failure from a rejection; without
-- that line the client's own error kind does. Warm-up turns are in it: a link does not forget them.
CREATE VIEW attempts AS
SELECT r.experiment, r.replicate, r.bootstrap_room AS room, r.session, r.turn, r.prefill_worker, r.decode_worker,
    r.dispatched_t, r.first_token_t, r.finished_t, r.status,
    CASE
        WHEN r.status <> 'error' THEN r.status
        WHEN t.logged IN ('real_failure', 'rejection', 'waiting_timeout', 'bootstrap_timeout') THEN t.logged
        WHEN r.error_kind = 'kv_transfer' THEN 'real_failure'
        WHEN r.error_kind = 'peer_dead' THEN 'rejection'
        WHEN r.error_kind IN ('waiting_timeout', 'bootstrap_timeout') THEN r.error_kind
        ELSE 'other'
    END AS outcome,
    outcome IN ('real_failure', 'rejection', 'waiting_timeout', 'bootstrap_timeout') AS transfer_failed,
    t.shard
FROM all_requests r
LEFT JOIN (SELECT experiment, replicate, room, any_value(outcome) AS logged, any_value(shard) AS shard FROM transfers GROUP BY ALL) t
    ON t.experiment = r.experiment AND t.replicate = r.replicate AND t.room = r.bootstrap_room
WHERE r.bootstrap_room IS NOT NULL;

-- When a P took a link back into use (the probe got an answer). A P's log names its peer by address: the D behind an address is
-- the one whose real failure ended when the P latched that address.
CREATE VIEW link_recoveries AS
WITH latched AS (
    SELECT e.experiment, e.replicate, e.worker, e.peer, arg_min(a.decode_worker, abs(e.t - a.finished_t)) AS decode_worker
    FROM worker_events e JOIN attempts a
        ON a.experiment = e.experiment AND a.replicate = e.replicate AND a.prefill_worker = e.worker AND a.outcome = 'real_failure'
        AND abs(e.t - a.finished_t) <= 2.0
    WHERE e.kind = 'link_latched' AND e.peer IS NOT NULL
    GROUP BY ALL
)
SELECT r.experiment, r.replicate, r.worker AS prefill_worker, l.decode_worker, r.t
FROM worker_events r JOIN latched l USING (experiment, replicate, worker, peer)
WHERE r.kind = 'peer_recovered' AND r.t IS NOT NULL;

-- Each attempt with what its link had gone through before: latched = a real failure, and no recovery since.
CREATE VIEW link_attempts AS
WITH a AS (
    SELECT *, coalesce(first_token_t, finished_t) AS known_t FROM attempts WHERE prefill_worker IS NOT NULL AND decode_worker IS NOT NULL
)
SELECT a.* EXCLUDE (known_t), f.t AS last_failure_t, c.t AS last_recovery_t,
    last_failure_t IS NOT NULL AND coalesce(last_recovery_t < last_failure_t, true) AS latched
FROM a
ASOF LEFT JOIN (SELECT experiment, replicate, prefill_worker, decode_worker, finished_t AS t FROM attempts WHERE outcome = 'real_failure' AND finished_t IS NOT NULL) f
    ON a.experiment = f.experiment AND a.replicate = f.replicate AND a.prefill_worker = f.prefill_worker AND a.decode_worker = f.decode_worker AND a.known_t > f.t
ASOF LEFT JOIN link_recoveries c
    ON a.experiment = c.experiment AND a.replicate = c.replicate AND a.prefill_worker = c.prefill_worker AND a.decode_worker = c.decode_worker AND a.known_t > c.t;

-- Per link P > D: counts, and when it first failed for real, rejected, succeeded and recovered.
CREATE VIEW links AS
SELECT a.*, c.recovered_t
FROM (
    SELECT experiment, replicate, prefill_worker, decode_worker, count(*) AS attempts,
        count(*) FILTER (outcome = 'real_failure') AS real_failures,
        count(*) FILTER (outcome = 'rejection') AS rejections,
        count(*) FILTER (outcome = 'ok') AS successes,
        count(*) FILTER (outcome = 'ok' AND latched) AS successes_after_latch,
        min(finished_t) FILTER (outcome = 'real_failure') AS first_failure_t,
        min(finished_t) FILTER (outcome = 'rejection') AS first_rejection_t,
        max(finished_t) FILTER (outcome = 'rejection') AS last_rejection_t,
        min(first_token_t) FILTER (outcome = 'ok') AS first_success_t,
        max(first_token_t) FILTER (outcome = 'ok') AS last_success_t
    FROM link_attempts GROUP BY ALL
) a
LEFT JOIN (SELECT experiment, replicate, prefill_worker, decode_worker, min(t) AS recovered_t FROM link_recoveries GROUP BY ALL) c
    USING (experiment, replicate, prefill_worker, decode_worker);
