"""config/: what the user wrote, checked against config/schema/ before anything runs, with defaults filled in.

A file of experiments has `defaults`, named `designs` and `experiments`; an experiment is defaults < its design < its own keys. Each of its
`grids` adds variants of experiments, all combinations of some values.
"""

from __future__ import annotations

import hashlib
import json
import re
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from apd_replay.errors import ConfigError, printable

DEFAULT_TRACE = "swebench-52"
DEFAULT_ENGINE = "sim"
DEFAULT_HARDWARE = "h100-qwen3-30b-a3b"

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
"""Ids become folder names and parts of SQL: no separators, quotes or wildcards."""
ID_RULE = "allowed: letters, digits and . _ @ + -, at most 100"

ANALYSIS_KEYS = frozenset({"title", "replicates", "warmup_turns", "slo_ttft_s", "slo_tpot_s", "trace", "trace_format"})
"""Keys of an experiment that decide nothing about a run: how many there are, how they are read, and what the trace's digest says better."""


@dataclass(frozen=True)
class Experiment:
    """One experiment as it will run: `settings` holds every key of config/schema/experiment.yaml, `cluster` those of its cluster file."""

    id: str
    settings: dict[str, Any]
    cluster: dict[str, Any]
    hardware: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.settings[key]

    @property
    def base(self) -> str:
        """The experiment's part in the claims: `E0` of `E0@acg_seedlike`."""
        return self.id.split("@")[0]

    @property
    def disaggregated(self) -> bool:
        return bool(self.cluster["decode"])

    @property
    def arrival_scale(self) -> float:
        return float(self["arrival_scale"] or self["time_scale"])

    @property
    def gap_scale(self) -> float:
        return float(self["gap_scale"] or self["time_scale"])

    def as_json(self) -> str:
        """Everything that decides a run but its trace, its replicate and the code; the same text for the same meaning."""
        deciding = {key: value for key, value in self.settings.items() if key not in ANALYSIS_KEYS}
        return json.dumps({"settings": deciding, "cluster": self.cluster, "hardware": self.hardware}, sort_keys=True)

    def record(self) -> dict[str, Any]:
        """The whole experiment as run.json keeps it: what decides the run, and how it is to be read."""
        return {"settings": self.settings, "cluster": self.cluster, "hardware": self.hardware}

    def digest(self) -> str:
        return hashlib.sha256(self.as_json().encode()).hexdigest()


@dataclass(frozen=True)
class Configuration:
    """config.yaml and everything it points to. `directory` is the folder that holds it, `source` the list of experiments."""

    directory: Path
    source: Path
    settings: dict[str, Any]
    experiments: dict[str, Experiment]

    def experiment(self, name: str) -> Experiment:
        """By its id, or by its name in the list (`E0` of `E0@my-trace`) where only one has it. Raises ConfigError."""
        found = [e for e in self.experiments.values() if name in (e.id, e.base)]
        if name in self.experiments or len(found) == 1:
            return self.experiments.get(name) or found[0]
        raise ConfigError(self.source, "experiments", f"{'several are' if found else 'no'} {name!r}; there are: {', '.join(self.experiments)}")


def load(file: str | Path, matrix: str | None = None, overrides: dict[str, Any] | None = None) -> Configuration:
    """Read `file` (config/config.yaml), the experiments of `matrix` (default: the file's own) and all they name.

    Raises ConfigError with file, key and what is allowed; nothing has been started then.
    """
    file = Path(file)
    directory = file.parent
    settings = _read(file)
    settings.update(overrides or {})
    settings = _checked(file, settings, _schema(directory, "config"))
    source = directory / "experiments" / f"{matrix or settings['matrix']}.yaml"
    experiments = _experiments(source, directory, settings)
    return Configuration(directory, source, settings, experiments)


def _experiments(source: Path, directory: Path, config: dict[str, Any]) -> dict[str, Experiment]:
    content = _read(source)
    for key in content:
        if key not in ("defaults", "designs", "experiments", "grids"):
            raise ConfigError(source, key, "unknown key; allowed: defaults, designs, experiments, grids")
    schema = _schema(directory, "experiment")
    read: dict[tuple[str, str], dict[str, Any]] = {}

    def named(key: str, folder: str, name: str, where: str) -> dict[str, Any]:
        """A cluster or hardware file; read once, since a list names the same few again and again."""
        if (key, name) not in read:
            content = _named(directory, folder, name, source, f"{where}.{key}")
            read[key, name] = _checked(directory / folder / f"{name}.yaml", content, _schema(directory, key))
        return read[key, name]

    out = {}
    for name, where, merged in _listed(source, content, directory):
        settings = _checked(source, merged, schema, where)
        settings["trace"] = settings["trace"] or config["trace"]
        settings["trace_format"] = settings["trace_format"] or config["trace_format"]
        if config["replicates"] is not None:
            settings["replicates"] = config["replicates"]
        cluster = deepcopy(named("cluster", "clusters", settings["cluster"], where))
        _check_shape(source, where, settings, cluster)
        hardware = deepcopy(named("hardware", "hardware", settings["hardware"], where))
        _scale(source, where, settings, cluster, hardware, directory)
        out_id = identity(str(name), settings)
        if not ID.fullmatch(out_id):
            raise ConfigError(source, f"experiments.{printable(str(name))}", f"its runs would be called {printable(out_id)}, which cannot name a folder; {ID_RULE}")
        out[out_id] = Experiment(out_id, settings, cluster, hardware)
    return out


def _listed(source: Path, content: dict[str, Any], directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, key in the file, settings unchecked): the experiments, and behind them what the grids add."""
    designs, plain = content.get("designs") or {}, {}
    for name, own in (content.get("experiments") or {}).items():
        where = f"experiments.{name}"
        if not isinstance(own, dict):
            raise ConfigError(source, where, "expected a mapping of settings")
        design = own.get("design")
        if design is not None and design not in designs:
            raise ConfigError(source, f"{where}.design", f"unknown design {design!r}; allowed: {', '.join(designs)}")
        plain[name] = {**(content.get("defaults") or {}), **designs.get(design, {}), **{k: v for k, v in own.items() if k != "design"}}
    out = [(name, f"experiments.{name}", settings) for name, settings in plain.items()]
    defaults = {key: rule.get("default") for key, rule in _schema(directory, "experiment")["properties"].items()}
    for k, grid in enumerate(content.get("grids") or []):
        grid = _checked(source, grid, _schema(directory, "grid"), f"grids.{k}")
        for name in grid["experiments"]:
            if name not in plain:
                raise ConfigError(source, f"grids.{k}.experiments", f"unknown experiment {name!r}; allowed: {', '.join(plain)}")
            for labels, values in _combinations(grid["vary"]):
                if any(plain[name].get(key, defaults.get(key)) != value for key, value in values.items()):  # the experiment itself is there already
                    out.append((".".join([name, *labels]), f"grids.{k}: {name}", {**plain[name], **grid["settings"], **values}))
    return out


def _combinations(vary: dict[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
    """(labels, settings) of every combination. A key given as a mapping has its values under their labels, as a list it has none: a trace
    names its experiments by itself."""
    out: list[tuple[list[str], dict[str, Any]]] = [([], {})]
    for key, values in vary.items():
        labelled = [([label], v) for label, v in values.items()] if isinstance(values, dict) else [([], v) for v in values]
        out = [(names + more, {**settings, key: value}) for names, settings in out for more, value in labelled]
    return out


def changed(base: Experiment, settings: dict[str, Any], directory: Path) -> Experiment:
    """`base` with other settings, checked as if it stood in a list. Its cluster and hardware files are read anew from `directory`."""
    source, where = directory / "experiments", f"experiments.{base.id}"
    merged = _checked(source, {**base.settings, **settings}, _schema(directory, "experiment"), where)
    cluster = _checked(source, _named(directory, "clusters", merged["cluster"], source, where), _schema(directory, "cluster"))
    hardware = _checked(source, _named(directory, "hardware", merged["hardware"], source, where), _schema(directory, "hardware"))
    _check_shape(source, where, merged, cluster)
    _scale(source, where, merged, cluster, hardware, directory)
    return Experiment(base.id, merged, cluster, hardware)


def splits(directory: Path, gpus: int) -> list[str]:
    """The clusters of config/clusters that have P's and D's, `gpus` workers in all and no settings of their own beside."""
    found = {file.stem: _read(file) for file in sorted((directory / "clusters").glob("*.yaml"))}
    return [name for name, shape in found.items() if set(shape) == {"prefill", "decode"} and shape["prefill"] + shape["decode"] == gpus]


def _scale(source: Path, where: str, settings: dict[str, Any], cluster: dict[str, Any], hardware: dict[str, Any], directory: Path) -> None:
    _scale_pools(settings["kv_pool_scale"], cluster, hardware)
    if settings["hardware_scale"]:
        _scale_coefficients(source, f"{where}.hardware_scale", settings["hardware_scale"], hardware)
        _checked(source, hardware, _schema(directory, "hardware"), f"{where}.hardware_scale")  # a rate of 0 would never end


def _scale_pools(scale: float, cluster: dict[str, Any], hardware: dict[str, Any]) -> None:
    for part in (cluster, hardware):
        if scale != 1 and part["kv_pool_tokens"] is not None:
            part["kv_pool_tokens"] = max(1, round(part["kv_pool_tokens"] * scale))


def _scale_coefficients(source: Path, where: str, factors: dict[str, float], hardware: dict[str, Any]) -> None:
    for name, factor in factors.items():
        *folders, key = name.split(".")
        part: Any = hardware
        for folder in folders:
            part = part.get(folder) if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(part.get(key), int | float):
            raise ConfigError(source, f"{where}.{name}", "is no coefficient of the hardware file, such as transfer.mooncake.bytes_per_s")
        part[key] = max(1, round(part[key] * factor)) if isinstance(part[key], int) else part[key] * factor


def syntheses(directory: Path) -> dict[str, dict[str, Any]]:
    """Parameters of every built-in trace of traces.yaml, by name; none where there is no such file."""
    file = directory / "traces.yaml"
    if not file.is_file():
        return {}
    schema = _schema(directory, "traces")
    return {str(name): _checked(file, own, schema, str(name)) for name, own in _read(file).items()}


def claim_rules(directory: Path) -> dict[str, Any]:
    """claims.yaml, checked: the rules that turn evidence into verdicts (claims/rules.py makes objects of them)."""
    file = directory / "claims.yaml"
    return _checked(file, _read(file), _schema(directory, "claims"))


def identity(name: str, settings: dict[str, Any]) -> str:
    """The experiment's id: its name, and behind an @ whatever engine, trace or hardware is not the default one."""
    trace = Path(settings["trace"]).name.split(".")[0]
    parts = [
        *([settings["engine"]] if settings["engine"] != DEFAULT_ENGINE else []),
        *([trace] if trace != DEFAULT_TRACE else []),
        *([settings["hardware"]] if settings["hardware"] != DEFAULT_HARDWARE and settings["engine"] == DEFAULT_ENGINE else []),
    ]
    return f"{name}@{'-'.join(parts)}" if parts and "@" not in name else name


def _check_shape(source: Path, where: str, settings: dict[str, Any], cluster: dict[str, Any]) -> None:
    if bool(cluster["workers"]) == bool(cluster["decode"]) or bool(cluster["prefill"]) != bool(cluster["decode"]):
        raise ConfigError(source, f"{where}.cluster", "a cluster has either `workers`, or both `prefill` and `decode`")
    if settings["resident"] and not cluster["decode"]:
        raise ConfigError(source, f"{where}.resident", "needs a cluster with decode workers")


def _named(directory: Path, folder: str, name: str, source: Path, key: str) -> dict[str, Any]:
    file = directory / folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(p.stem for p in (directory / folder).glob("*.yaml")))
        raise ConfigError(source, key, f"no {file}; there are: {known or 'none'}")
    return _read(file)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(file, "(file)", f"cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
        raise ConfigError(file, place, f"not valid YAML: {getattr(error, 'problem', error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(file, "(file)", "expected a mapping of keys")
    return content


def _schema(directory: Path, name: str) -> dict[str, Any]:
    return _read(directory / "schema" / f"{name}.yaml")


def _checked(file: Path, content: dict[str, Any], schema: dict[str, Any], where: str = "") -> dict[str, Any]:
    """`content` with defaults, or a ConfigError that names the key and what is allowed."""
    for error in sorted(Draft202012Validator(schema).iter_errors(content), key=lambda e: (len(e.absolute_path), list(map(str, e.absolute_path)))):
        path = [*([where] if where else []), *map(str, error.absolute_path)]
        if error.validator == "additionalProperties":
            allowed = sorted(error.schema["properties"])
            unknown = sorted(set(error.instance) - set(allowed))
            raise ConfigError(file, ".".join([*path, unknown[0]]), f"unknown key; allowed: {', '.join(allowed)}")
        if error.validator == "required":
            missing = sorted(set(error.schema["required"]) - set(error.instance))
            raise ConfigError(file, ".".join([*path, missing[0]]), "missing")
        raise ConfigError(file, ".".join(path) or "(file)", _expectation(error))
    return _with_defaults(content, schema)


def _expectation(error: Any) -> str:
    value = json.dumps(error.instance, default=str)
    if error.validator == "enum":
        return f"{value} is not allowed; allowed: {', '.join(map(str, error.validator_value))}"
    if error.validator == "type":
        kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
        return f"{value} is not allowed; expected {' or '.join(kinds)}"
    return f"{error.message}"


def _with_defaults(content: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    out = dict(content)
    for key, rule in schema["properties"].items():
        if key not in out and "default" in rule:
            out[key] = rule["default"]
        if "properties" in rule and isinstance(out.get(key), dict):
            out[key] = _with_defaults(out[key], rule)
    return out
