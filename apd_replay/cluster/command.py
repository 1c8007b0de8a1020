"""`apd doctor`."""

from __future__ import annotations

import sys

import click


@click.command()
def doctor() -> None:
    """Say what this machine can run, and what to do where it cannot."""
    from apd_replay.cluster.doctor import examine

    findings = examine()
    width = max(len(f.subject) for f in findings)
    for f in findings:
        click.echo(f"{f.verdict:<7} {f.subject:<{width}}  {f.found}")
        if f.remedy:
            click.echo(f"{'':7} {'':<{width}}  -> {f.remedy}")
    if any(f.verdict == "broken" for f in findings):
        sys.exit(1)
