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
