"""`apd`: every stage by hand. A command lives in its stage's `command.py` and is imported only when it is called,
so that a job of the workflow pays for one stage only (31 ms instead of a second)."""

from __future__ import annotations

import errno
import importlib.util
import sys

import click

from apd_replay import __version__
from apd_replay.errors import ApdError, printable

COMMANDS = {
    "trace": "apd_replay.trace.command:trace",
    "replay": "apd_replay.engines:replay",
    "cell": "apd_replay.cells:cell",
    "parse": "apd_replay.logs.command:parse",
    "import": "apd_replay.warehouse.command:import_runs",
    "warehouse": "apd_replay.warehouse.command:warehouse",
    "sql": "apd_replay.warehouse.command:sql",
    "claims": "apd_replay.claims.command:claims",
    "compare": "apd_replay.claims.command:compare",
    "report": "apd_replay.report.command:report",
    "trace-events": "apd_replay.report.command:trace_events",
    "doctor": "apd_replay.cluster.command:doctor",
    "emulate": "apd_replay.emulator.command:emulate",
    "kit": "apd_replay.cluster.kit_command:kit",
    "calibrate": "apd_replay.cluster.calibrate_command:calibrate",
    "tune": "apd_replay.tuning:tune",
}

SURROUNDINGS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.EIO)
"""Failures of the machine rather than of the program: a full disk, a read-only folder. One line says them better than a traceback."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, place in COMMANDS.items() if importlib.util.find_spec(place.split(":")[0]) is not None]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        module, attribute = COMMANDS[name].split(":")
        command: click.Command | None = getattr(importlib.import_module(module), attribute, None)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="apd")
def apd() -> None:
    """Replay agent traces against prefill/decode clusters of SGLang, and decide claims about the runs."""


def main() -> None:
    try:
        apd.main(prog_name="apd", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        sys.exit("apd: stopped")
    except click.ClickException as wrong_call:
        wrong_call.show()
        sys.exit(2)
    except ApdError as error:
        print(f"apd: {printable(str(error))}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno not in SURROUNDINGS:
            raise
        place = error.filename or " ".join(sys.argv[1:])  # Arrow does not say which file
        print(f"apd: {place}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
