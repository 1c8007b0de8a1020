-- What happened on each D: trims and retractions from its log, pauses of sends to it, requests that failed on it.
SELECT worker, kind, t FROM worker_events
WHERE experiment = $experiment AND replicate = $replicate AND worker LIKE 'decode-%' AND kind IN ('trim', 'retract') AND t IS NOT NULL
UNION ALL
SELECT decode_worker, 'pause', t FROM pauses WHERE experiment = $experiment AND replicate = $replicate
UNION ALL
SELECT decode_worker, 'error', finished_t FROM requests
WHERE experiment = $experiment AND replicate = $replicate AND status = 'error' AND decode_worker IS NOT NULL AND finished_t IS NOT NULL
ORDER BY ALL
