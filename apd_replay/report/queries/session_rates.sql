-- Direct-to-D rate of each session over all replicates of an experiment, beside its largest prompt.
SELECT session, max(peak_input) AS peak_input, count(*) AS replicates, avg(direct_rate) AS mean_rate, min(direct_rate) AS lowest, max(direct_rate) AS highest
FROM sessions WHERE experiment = $experiment AND direct_rate IS NOT NULL
GROUP BY session ORDER BY peak_input DESC, session
