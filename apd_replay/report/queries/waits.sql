-- How long failed requests had waited, by what failed, as quantiles at 100 equal steps.
SELECT coalesce(error_kind, 'unnamed') AS error_kind, count(*) AS n, quantile_cont(elapsed_s, [k / 100 FOR k IN range(101)]) AS curve
FROM requests
WHERE experiment = $experiment AND replicate = $replicate AND status = 'error' AND elapsed_s IS NOT NULL
GROUP BY ALL ORDER BY error_kind
