"""Write the pages that follow from the code: config/README.md, docs/cli.md, docs/tables.md.

    python docs/generate.py            write them
    python docs/generate.py --check    say which are not current, exit status 1

The keys come from config/schema/, the commands from click, the columns from apd_replay.schemas: no second list to keep.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from apd_replay import schemas
from apd_replay.cli import COMMANDS, apd

ROOT = Path(__file__).resolve().parents[1]

CONFIG_FILES = {
    "config": ("config/config.yaml", "What `snakemake report` runs. `--config key=value` on its command line goes before the file."),
    "experiment": ("config/experiments/*.yaml", "Lists of experiments. A file has `defaults`, named `designs` and `experiments`; an experiment's keys are the "
                   "defaults, then its `design`'s, then its own, the later ones winning. The list `matrix` is the one `config.yaml` names; "
                   "`smoke` and `remedies` have targets of their own."),
    "grid": ("config/experiments/*.yaml: grids", "Variants of a list's experiments, all combinations of some values; one that is the experiment itself adds nothing."),
    "cluster": ("config/clusters/*.yaml", "Shapes of clusters, named by an experiment's `cluster`."),
    "hardware": ("config/hardware/*.yaml", "What a simulated GPU takes for its work: coefficients, each with where it was measured or that it is a guess."),
    "traces": ("config/traces.yaml", "Built-in traces: name to parameters. A trace file needs no entry here; `trace` of `config.yaml` takes its path."),
    "claims": ("config/claims.yaml", "The rules that turn a claim's evidence into a verdict."),
}  # fmt: skip


def config_page() -> str:
    out = ["# Configuration", "",
           "Every key, from `config/schema/`, which checks the files before any job starts. A wrong key is answered with file, key and what is allowed.",
           "This page is written by `python docs/generate.py`.", ""]  # fmt: skip
    known = {p.stem for p in (ROOT / "config/schema").glob("*.yaml")}
    for name in [*(n for n in CONFIG_FILES if n in known), *sorted(known - set(CONFIG_FILES))]:
        schema = yaml.safe_load((ROOT / f"config/schema/{name}.yaml").read_text(encoding="utf-8"))
        files, what = CONFIG_FILES.get(name, (f"config/{name}.yaml", schema.get("description", "")))
        out += [f"## {files}", "", what, "", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        out += [*_keys(schema, ""), ""]
        for part, rule in schema.get("$defs", {}).items():
            out += [f"An `{part}`:", "", "| key | type | default | meaning |", "| --- | --- | --- | --- |", *_keys(rule, ""), ""]
    return "\n".join(out)


def _keys(schema: dict[str, Any], prefix: str) -> list[str]:
    rows = []
    required = schema.get("required", [])
    for key, rule in schema.get("properties", {}).items():
        default = "required" if key in required else f"`{json.dumps(rule['default'])}`" if "default" in rule else ""
        rows.append(f"| `{prefix}{key}` | {_cell(_type(rule))} | {_cell(default)} | {_cell(rule.get('description', ''))} |")
        rows += _keys(rule, f"{prefix}{key}.")
    for inner, step in ((schema.get("additionalProperties"), "NAME."), (schema.get("items"), "")):
        if isinstance(inner, dict) and "properties" in inner:
            rows += _keys(inner, prefix + step)
    return rows


def _type(rule: dict[str, Any]) -> str:
    reference = rule.get("$ref") or (rule.get("items") or {}).get("$ref")
    if reference:
        return ("array of " if "items" in rule else "") + str(reference).rsplit("/", 1)[-1]
    if "enum" in rule:
        return ", ".join(f"`{value}`" for value in rule["enum"])
    kinds = rule.get("type", "any")
    text = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if isinstance(rule.get("items"), dict) and "type" in rule["items"]:
        text += f" of {rule['items']['type']}"
    limits = [f"{sign} {rule[word]}" for word, sign in (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most")) if word in rule]
    return ", ".join([text, *limits])


def cli_page() -> str:
    out = ["# The command line", "", "`apd` has the workflow's steps by hand, and what stands beside the workflow. Exit status 0; 1 with one line on",
           "stderr that says what is wrong and where; 2 for a wrong call. This page is written by `python docs/generate.py`.", ""]  # fmt: skip
    context = click.Context(apd, info_name="apd")
    for name in COMMANDS:
        command = apd.get_command(context, name)
        if command is not None:
            out += _command(command, f"apd {name}", context)
    return "\n".join(out)


def _command(command: click.Command, path: str, parent: click.Context) -> list[str]:
    context = click.Context(command, info_name=path.rsplit(" ", 1)[-1], parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    help_text = (command.help or "").replace("\b\n", "")
    out = [f"## {path}", "", f"`{path} {usage}`", "", *(line.strip() for line in help_text.strip().splitlines()), ""]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        out += ["| option | meaning |", "| --- | --- |"]
        for option in options:
            record = option.get_help_record(context)
            if record:
                out.append(f"| `{_cell(record[0])}` | {_cell(record[1])} |")
        out.append("")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                out += _command(child, f"{path} {name}", context)
    return out


def tables_page() -> str:
    out = ["# Tables", "", "Every table and column, from `apd_replay/schemas.py`. Times: `t` and `*_t` are seconds since the run's start, `ts` UTC epoch seconds;",
           "lengths are tokens. Every per-run table begins with `experiment` and `replicate`. A missing value is NULL, never 0.",
           "This page is written by `python docs/generate.py`.", ""]  # fmt: skip
    for table in schemas.TABLES.values():
        out += [f"## {table.name}", "", table.doc + (" Per run." if table.per_run else ""), "", "| column | type | meaning |", "| --- | --- | --- |"]
        out += [f"| `{c.name}` | {c.type}{'' if c.null else ', never null'} | {_cell(c.doc)} |" for c in table.columns]
        out.append("")
    kinds = {"error_kind": schemas.ERROR_KINDS, "worker_events.kind": schemas.EVENT_KINDS}
    out += ["## Lists of kinds", "", *(f"- `{name}`: " + ", ".join(f"`{k}`" for k in values) for name, values in kinds.items()), ""]
    return "\n".join(out)


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


PAGES = {"config/README.md": config_page, "docs/cli.md": cli_page, "docs/tables.md": tables_page}


def main(arguments: list[str]) -> int:
    stale = [name for name, page in PAGES.items() if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != page()]
    if arguments == ["--check"]:
        print("\n".join(f"{name} is not current: python docs/generate.py" for name in stale), end="\n" if stale else "")
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(PAGES[name](), encoding="utf-8")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
