-- The log lines behind a run's figures: of each kind on each worker (and to each peer) how many, the first and the last.
SELECT worker, kind, peer, count(*) AS lines, min(t) AS first_t, arg_min(file, line) AS file, min(line) AS first_line, max(line) AS last_line
FROM worker_events
WHERE experiment = $experiment AND replicate = $replicate
    AND kind IN ('transfer_error', 'link_latched', 'peer_dead', 'peer_recovered', 'trim', 'retract', 'waiting_timeout', 'bootstrap_timeout',
        'oom_abort', 'crash', 'watchdog', 'heartbeat_lost', 'mooncake_timeout', 'pool_leak', 'exception')
GROUP BY worker, kind, peer ORDER BY worker, kind, first_line
