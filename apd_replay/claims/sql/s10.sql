-- A dead P wedges its D's for good: nothing that is asked of them is answered, and no timeout ever fires.
WITH served AS (
    SELECT experiment, replicate, prefill_worker, max(first_token_t) AS last_t
    FROM all_requests WHERE path IN ('seed', 'fallback') AND status = 'ok' GROUP BY ALL
),
death AS ( -- a P that the client could not reach any more
    SELECT r.experiment, r.replicate, r.prefill_worker, min(r.finished_t) AS died_t
    FROM all_requests r LEFT JOIN served s USING (experiment, replicate, prefill_worker)
    WHERE r.path IN ('seed', 'fallback') AND r.error_kind = 'connection' AND r.finished_t > coalesce(s.last_t, 0)
    GROUP BY ALL
),
link AS (
    SELECT DISTINCT d.*, r.decode_worker
    FROM death d JOIN all_requests r USING (experiment, replicate, prefill_worker)
    WHERE r.decode_worker IS NOT NULL AND r.path IN ('seed', 'fallback')
),
question AS ( -- what needs no P: admission calls and direct turns. Hung: 5 s or longer, or until the client gave up
    SELECT experiment, replicate, decode_worker, t - latency_s AS asked_t, latency_s >= 5 AS late, latency_s < 5 AS in_time FROM admissions
    UNION ALL
    SELECT experiment, replicate, decode_worker, dispatched_t, coalesce(error_kind = 'client_timeout', false), status = 'ok'
    FROM all_requests WHERE path = 'direct' AND dispatched_t IS NOT NULL
),
line AS (
    SELECT experiment, replicate, worker AS decode_worker, t, NULL AS kind FROM worker_samples
    UNION ALL
    SELECT experiment, replicate, worker, t, kind FROM worker_events
),
asked AS ( -- from 10 s after the death on: heartbeats have noticed by then
    SELECT l.experiment, l.replicate, l.prefill_worker, l.decode_worker,
        count(*) FILTER (q.late) AS hung, count(*) FILTER (q.in_time) AS answered, CASE WHEN hung + answered > 0 THEN (answered = 0)::INTEGER END AS wedged
    FROM link l LEFT JOIN question q
        ON q.experiment = l.experiment AND q.replicate = l.replicate AND q.decode_worker = l.decode_worker AND q.asked_t >= l.died_t + 10
    GROUP BY ALL
),
logged AS ( -- no row for a D without a log: its silence is unknown
    SELECT l.experiment, l.replicate, l.prefill_worker, l.decode_worker,
        any_value(r.duration_s) - greatest(max(n.t), any_value(l.died_t)) AS silence_s,
        count(*) FILTER (n.kind = 'waiting_timeout' AND n.t > l.died_t) AS waiting_timeouts
    FROM link l JOIN line n USING (experiment, replicate, decode_worker) JOIN runs r USING (experiment, replicate)
    WHERE n.t <= r.duration_s
    GROUP BY ALL
)
SELECT metric, experiment, replicate, prefill_worker || '>' || decode_worker AS scope, value::DOUBLE AS value, 'questions' AS unit, hung_or_answered AS n
FROM (UNPIVOT (SELECT *, hung + answered AS hung_or_answered FROM asked) ON hung, answered INTO NAME metric VALUE value)
UNION ALL BY NAME
SELECT 'silence_s' AS metric, experiment, replicate, prefill_worker || '>' || decode_worker AS scope, silence_s AS value, 's' AS unit, 1 AS n FROM logged
UNION ALL BY NAME
SELECT 'waiting_timeouts' AS metric, experiment, replicate, prefill_worker || '>' || decode_worker AS scope, waiting_timeouts AS value, 'lines' AS unit, 1 AS n FROM logged
UNION ALL BY NAME
SELECT 'wedged_share' AS metric, experiment, replicate, avg(wedged) AS value, 'of the D''s whose P died' AS unit, count(wedged) AS n
FROM asked WHERE wedged IS NOT NULL GROUP BY experiment, replicate
