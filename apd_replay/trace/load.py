"""Any trace by its name: a built-in synthesis of config/traces.yaml, a trace file of any format, or a turns Parquet."""

from __future__ import annotations

from pathlib import Path

from apd_replay import configuration
from apd_replay.errors import InputError
from apd_replay.trace import reading, synthesis
from apd_replay.trace.model import Trace
from apd_replay.trace.reading import Reading

PARQUET_MAGIC = b"PAR1"


def load(name_or_path: str | Path, format: str | None = None, config_dir: Path = Path("config")) -> Trace:
    """The trace, read strictly. A file of that name goes before a built-in trace."""
    return load_with_reading(name_or_path, format, config_dir)[0]


def load_with_reading(name_or_path: str | Path, format: str | None = None, config_dir: Path = Path("config"),
                      lenient: bool = False) -> tuple[Trace, Reading | None]:
    """The trace, and what reading its file found (None: it was no text file)."""
    file = Path(name_or_path)
    if file.is_file():
        if _is_parquet(file):
            from apd_replay.trace import table

            return table.read(file), None
        return reading.read(file, format, lenient)
    builtin = configuration.syntheses(config_dir)
    if str(name_or_path) in builtin:
        return synthesis.synthesize(str(name_or_path), builtin[str(name_or_path)]), None
    raise InputError(file, "is a folder" if file.is_dir() else "no such trace",
                     remedy=f"give a trace file, or one of the built-in traces of {config_dir / 'traces.yaml'}: {', '.join(builtin) or 'none'}")


def _is_parquet(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(4) == PARQUET_MAGIC
    except OSError as error:
        raise InputError(file, f"cannot be read: {error.strerror}") from None
