-- The log lines behind a run's figures: of each kind on each worker (and to each peer) how many, the first and the last.
-- How a server goes down once the run has ended is not the run's.
SELECT worker, kind, peer, count(*) AS lines, min(t) AS first_t, arg_min(file, line) AS file, min(line) AS first_line, max(line) AS last_line
FROM worker_events
WHERE experiment = $experiment AND replicate = $replicate
    AND kind IN ('transfer_error', 'link_latched', 'peer_dead', 'peer_recovered', 'trim', 'retract', 'waiting_timeout', 'bootstrap_timeout',
        'oom_abort', 'crash', 'watchdog', 'heartbeat_lost', 'mooncake_timeout', 'pool_leak', 'exception')
    AND NOT (kind IN ('crash', 'exception')
        AND coalesce(t > (SELECT max(duration_s) FROM runs WHERE experiment = $experiment AND replicate = $replicate), false))
GROUP BY worker, kind, peer ORDER BY worker, kind, first_line
