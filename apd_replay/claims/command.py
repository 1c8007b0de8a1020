"""`apd claims`, `apd compare`."""

from __future__ import annotations

from pathlib import Path

import click

RESULTS = click.option("--results", type=click.Path(path_type=Path, file_okay=False), default=Path("results"), show_default=True, help="Folder of all that is written.")
CONFIG = click.option("--config", "config_dir", type=click.Path(path_type=Path, file_okay=False), default=Path("config"), show_default=True, help="Folder with claims.yaml.")


@click.command()
@RESULTS
@CONFIG
def claims(results: Path, config_dir: Path) -> None:
    """Decide every claim from the runs in results/: claims/, and the tables evidence and verdicts of apd.duckdb."""
    from apd_replay.claims import deciding, rules, writing
    from apd_replay.warehouse import database

    rule_book = rules.load(config_dir)
    with database.connect(results) as connection:
        decided = deciding.decide_all(connection, rule_book)
    database.build(results, writing.tables(decided))
    writing.write(decided, results / "claims")  # last, so that these files are newer than the database
    for v in decided.verdicts:
        leaning = f", leaning: {v['leaning']}" if v["leaning"] else ""
        click.echo(f"{v['claim']:<9} {v['engine']} {v['trace']}: {v['verdict']}{leaning}  {writing.effect(v)}")


@click.command()
@click.argument("a")
@click.argument("b")
@RESULTS
@CONFIG
def compare(a: str, b: str, results: Path, config_dir: Path) -> None:
    """Experiment A against B: every figure, the difference with its interval, and whether it counts."""
    from apd_replay.claims import comparing, rules, writing
    from apd_replay.warehouse import database

    with database.connect(results) as connection:
        compared = comparing.compare(connection, rules.load(config_dir), a, b)
    number = writing.number
    click.echo(f"{'':<30} {a:>14} {b:>14}  difference")
    for line in compared.lines:
        interval = "" if line.low is None or line.high is None else f" ({number(line.low)} to {number(line.high)})"
        difference = f"{'x' if line.is_ratio else ''}{number(line.difference)}{interval}"
        click.echo(f"{line.metric:<30} {number(line.a):>14} {number(line.b):>14}  {difference:<34} {line.word:<20} N = {line.n[0]}, {line.n[1]}  {line.unit}")
    click.echo(f"\nx: ratio {a} / {b}; else {a} - {b}. 95 % intervals over replicates, {'paired by seed' if compared.paired else 'unpaired'}.")
    for confounder in compared.confounders:
        click.echo(f"could also explain it: {confounder}")
