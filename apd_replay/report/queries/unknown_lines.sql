-- Lines that no rule of the parser knows, per run.
SELECT experiment, replicate, sum(count) AS lines, count(*) AS shapes FROM unknown_lines GROUP BY ALL
