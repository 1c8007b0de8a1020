"""`snakemake remedies` in a small project: a report of its own, what is left out is said, and nothing is done twice."""

from __future__ import annotations

from pathlib import Path

from small_project import lay_out

LIST = """\
defaults: {engine: sim, concurrency: 32, time_scale: 10, replicates: 2, kv_pool_scale: 1}
experiments:
  E0: {cluster: 2p6d, policy: kv_aware, resident: true}
  E6: {cluster: 8dp, policy: cache_aware}
grids:
  - {experiments: [E0, E6], vary: {time_scale: {S1: 1, S10: 10}}, settings: {rows: no_logs}}
  - {experiments: [E0], vary: {trace: [nowhere.jsonl]}, settings: {rows: no_logs}}
"""


def test_the_grid_is_run_once_and_reported(tmp_path: Path) -> None:
    project = lay_out(tmp_path)
    (tmp_path / "config/experiments/few.yaml").write_text(LIST)
    target = ("--config", "remedies=few", "--", "remedies")
    done = project.snakemake(*target)
    assert "note: 1 experiments of few are left out: there is no trace nowhere.jsonl" in done.stderr
    results = tmp_path / "results/remedies"
    assert {p.stem for p in (results / "figures").iterdir()} == {"E0@tiny", "E0.S1@tiny", "E6@tiny", "E6.S1@tiny"}
    page = (results / "report/report.md").read_text()
    assert "The remedies: what they buy" in page and "Does the verdict change with the time-scale" in page
    assert {p.name for p in (results / "runs").iterdir()} == {"E0@tiny", "E6@tiny"}
    assert project.stale(*target) == {}
    project.edit("config/experiments/few.yaml", "S1: 1,", "S1: 2,")
    assert project.stale(*target) == {"cell": 2, "remedies_report": 1, "remedies": 1}
    assert not (tmp_path / "results/runs").exists()  # the matrix and its report know nothing of these runs
