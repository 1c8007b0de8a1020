-- The gaps between turns as one run replayed them: due time less the previous turn's end.
SELECT count(gap) AS n, quantile_cont(gap, [k / 200 FOR k IN range(201)]) AS curve
FROM (
    SELECT scheduled_t - lag(finished_t) OVER (PARTITION BY session ORDER BY turn) AS gap
    FROM requests WHERE experiment = $experiment AND replicate = $replicate
)
WHERE gap IS NOT NULL
