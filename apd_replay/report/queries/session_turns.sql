-- Every turn of one run, as the session map draws it.
SELECT session, turn, path, status, error_kind, dispatched_t, finished_t
FROM requests WHERE experiment = $experiment AND replicate = $replicate AND dispatched_t IS NOT NULL
ORDER BY session, turn
