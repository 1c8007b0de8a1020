"""What came back from GPU hosts becomes evidence/: tables, manifests, verdicts, and simulated beside real.

    python workflow/gpu/collect.py RUN_DIRS... [--results results-gpu] [--evidence evidence] [--matrix gpu-smoke-sim]

The runs are imported into --results; the same experiments run through the simulator into the same folder (the hardware file and pool of --matrix);
claims are decided. --evidence then gets tables/ and runs/ of the real runs, verdicts.csv of both engines, prediction.csv and prediction.md. Raw logs of
a run are kept (gzip) where they take less than LOGS_BYTES.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb

LOGS_BYTES = 200_000  # a run, compressed
LIMIT_BYTES = 20 << 20
METRICS = ("ttft_p50", "ttft_p90", "ttft_p99", "latency_p50", "latency_p90", "latency_p99", "direct_rate", "retractions", "errors")

FIGURES = """
WITH r AS (SELECT engine, trace, part(experiment) AS part, experiment, replicate FROM runs WHERE engine IN ('sim', 'sglang')),
f AS (
    SELECT experiment, replicate, quantile_cont(ttft_s, 0.5) AS ttft_p50, quantile_cont(ttft_s, 0.9) AS ttft_p90, quantile_cont(ttft_s, 0.99) AS ttft_p99,
        quantile_cont(latency_s, 0.5) AS latency_p50, quantile_cont(latency_s, 0.9) AS latency_p90, quantile_cont(latency_s, 0.99) AS latency_p99,
        count(*) FILTER (path = 'direct') / nullif(count(*) FILTER (path IN ('direct', 'fallback')), 0) AS direct_rate,
        sum(retractions) AS retractions, count(*) FILTER (status = 'error') AS errors, count(*) AS requests
    FROM requests GROUP BY ALL
)
SELECT trace, part, engine, count(*) AS n, {means} FROM r JOIN f USING (experiment, replicate) GROUP BY ALL ORDER BY ALL
""".replace("{means}", ", ".join(f"avg({m}) AS {m}" for m in (*METRICS, "requests")))

VERDICTS = """
SELECT claim, trace, r.verdict AS real, r.leaning AS real_leaning, r.n AS real_n, s.verdict AS simulated, s.leaning AS simulated_leaning, s.n AS simulated_n,
    CASE WHEN coalesce(r.leaning, r.verdict) IN ('undecided', 'withdrawn') OR coalesce(s.leaning, s.verdict) IN ('undecided', 'withdrawn') THEN 'not decided'
         WHEN coalesce(r.leaning, r.verdict) = coalesce(s.leaning, s.verdict) THEN 'yes' ELSE 'no' END AS same
FROM (FROM verdicts WHERE engine = 'sglang') r JOIN (FROM verdicts WHERE engine = 'sim') s USING (claim, trace) ORDER BY ALL
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("runs", nargs="+", type=Path)
    options.add_argument("--results", type=Path, default=Path("results-gpu"))
    options.add_argument("--evidence", type=Path, default=Path("evidence"))
    options.add_argument("--matrix", default="gpu-smoke-sim")
    at = options.parse_args()
    whole = [run for run in at.runs if (run / "run.json").is_file()]
    for run in sorted(set(at.runs) - set(whole)):
        print(f"{run}: no run.json, not a whole run: left out", file=sys.stderr)
    apd("import", *whole, "--results", at.results)
    simulate(at.matrix, at.results)
    apd("warehouse", "--results", at.results)
    apd("claims", "--results", at.results)
    keep(at.results, at.evidence, whole)
    with duckdb.connect(str(at.results / "apd.duckdb"), read_only=True) as connection:
        connection.execute("SET file_search_path = ?", [str(at.results)])
        prediction(connection, at.evidence)
    size = sum(file.stat().st_size for file in at.evidence.rglob("*") if file.is_file())
    print(f"{at.evidence}: {size / (1 << 20):.1f} MiB{'' if size <= LIMIT_BYTES else ': more than 20 MiB, take something out'}")


def apd(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "apd_replay", *map(str, arguments)], check=True)


def simulate(matrix: str, results: Path) -> None:
    from apd_replay import configuration, engines
    from apd_replay.trace import table
    from apd_replay.trace.load import load

    settings = configuration.load("config/config.yaml", matrix)
    for experiment in settings.experiments.values():
        trace = load(experiment["trace"], experiment["trace_format"], settings.directory)
        table.write(trace, results / "traces" / f"{trace.name}.parquet")
        for replicate in range(1, experiment["replicates"] + 1):
            engines.run_into_store(experiment, trace, replicate, results)
            apd("parse", "--run", results / "runs" / experiment.id / f"r{replicate}.json", "--out", results / "tables", "--experiment", experiment.id, "--replicate", replicate)


def keep(results: Path, evidence: Path, runs: list[Path]) -> None:
    from apd_replay.replay.store import manifests

    for manifest in manifests(results):
        if manifest["engine"] != "sglang":
            continue
        name, part = f"{manifest['experiment']}/r{manifest['replicate']}.json", f"experiment={manifest['experiment']}/replicate={manifest['replicate']}"
        (evidence / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results / "runs" / name, evidence / "runs" / name)
        for table in (results / "tables").iterdir():
            if (table / part).is_dir():
                shutil.copytree(table / part, evidence / "tables" / table.name / part, dirs_exist_ok=True)
        logs = sorted((results / "store" / manifest["run_id"] / "logs").glob("*.log"))
        packed = {log.name: gzip.compress(log.read_bytes(), mtime=0) for log in logs}
        if sum(map(len, packed.values())) < LOGS_BYTES:
            place = evidence / "logs" / manifest["experiment"] / f"r{manifest['replicate']}"
            place.mkdir(parents=True, exist_ok=True)
            for log, content in packed.items():
                (place / f"{log}.gz").write_bytes(content)
    shutil.copyfile(results / "claims" / "verdicts.csv", evidence / "verdicts.csv")


def prediction(connection: duckdb.DuckDBPyConnection, evidence: Path) -> None:
    """Means over the replicates of each engine, and predicted over measured."""
    found = connection.execute(FIGURES)
    names = [column[0] for column in found.description or []]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    sides = {(row["trace"], row["part"], row["engine"]): row for row in rows}
    table = []
    for (trace, part, engine), real in sides.items():
        simulated = sides.get((trace, part, "sim"))
        if engine != "sglang" or simulated is None:
            continue
        for metric in METRICS:
            measured, predicted = real[metric], simulated[metric]
            if measured is not None and predicted is not None:
                ratio = predicted / measured if measured else None
                table.append({"trace": trace, "experiment": part, "metric": metric, "measured": round(measured, 4), "n": real["n"], "predicted": round(predicted, 4),
                              "predicted_n": simulated["n"], "predicted_over_measured": None if ratio is None else round(ratio, 3)})  # fmt: skip
    verdicts = connection.execute(VERDICTS)
    heads = [column[0] for column in verdicts.description or []]
    agreement = [dict(zip(heads, row, strict=True)) for row in verdicts.fetchall()]
    evidence.mkdir(parents=True, exist_ok=True)
    for name, content in (("prediction", table), ("agreement", agreement)):
        if content:
            with open(evidence / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, content[0].keys(), lineterminator="\n")
                writer.writeheader()
                writer.writerows(content)
    page = ["# Simulated over real", "", "Means over the replicates of each side; `n` of both is in prediction.csv. Real: engine sglang. Predicted: engine sim, never the other way round.", ""]
    page += markdown([{"trace": t, "experiment": e, **{r["metric"]: r["predicted_over_measured"] if r["predicted_over_measured"] is not None else f"{r['predicted']} : 0"
                      for r in table if (r["trace"], r["experiment"]) == (t, e)}} for t, e in dict.fromkeys((r["trace"], r["experiment"]) for r in table)])  # fmt: skip
    page += ["", "# The same verdict?", "", *markdown(agreement)]
    (evidence / "prediction.md").write_text("\n".join(page) + "\n", encoding="utf-8")


def markdown(rows: list[dict[str, object]]) -> list[str]:
    if not rows:
        return ["(nothing to compare)"]
    heads = list(dict.fromkeys(key for row in rows for key in row))
    return [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *(f"| {' | '.join('' if row.get(h) is None else str(row[h]) for h in heads)} |" for row in rows)]


if __name__ == "__main__":
    main()
