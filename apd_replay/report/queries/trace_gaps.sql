-- The gaps between turns as the trace has them, as quantiles at 200 equal steps.
SELECT count(*) AS n, quantile_cont(gap_s, [k / 200 FOR k IN range(201)]) AS curve
FROM turns WHERE trace = $trace AND gap_s IS NOT NULL
