"""Any client's JSON Lines, by a mapping file that says where each column of `requests` stands (docs/import.md).

    dispatched_t: {field: times.sent, unit: epoch_ms}     a moment
    first_token_t: {after: dispatched_t, field: ttft, unit: ms}   a duration from another column
    reported_latency_s: {field: latency, unit: ms}        a duration
    status: {field: http_code, ok: [200], truncated: [null]}      everything else is an error
    session: user.id                                      text or number as it is
    path: {value: dp}                                     the same for all, stated by you
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from apd_replay import schemas
from apd_replay.errors import ConfigError, InputError
from apd_replay.warehouse.sources.foreign import SECONDS, ForeignRun, Row, number, objects, whole

EPOCH = {f"epoch_{unit}": factor for unit, factor in SECONDS.items() if unit in ("s", "ms", "us", "ns")}
_KEYS = {"field", "unit", "after", "ok", "truncated", "value"}
_COLUMNS = {c.name: c for c in schemas.REQUESTS.columns}
_WORDS = {"path": schemas.PATHS, "error_kind": schemas.ERROR_KINDS, "admission": ("admitted", "rejected", "none")}


@dataclass(frozen=True)
class Rule:
    """Where one column comes from."""

    column: str
    field: tuple[str, ...] = ()
    unit: str | None = None
    after: str | None = None
    ok: tuple[Any, ...] = ()
    truncated: tuple[Any, ...] = ()
    value: Any = None

    @property
    def kind(self) -> str:
        return _COLUMNS[self.column].type

    @property
    def moment(self) -> bool:
        return self.column.endswith("_t")


def load(file: Path) -> list[Rule]:
    """Raises ConfigError with file and key."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(file, "(file)", f"cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(file, "(file)", f"not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict):
        raise ConfigError(file, "(file)", "expected one `column: field` a line")
    rules = {str(column): _rule(file, str(column), own) for column, own in content.items()}
    if "status" not in rules:
        raise ConfigError(file, "status", "is missing: which requests were answered? {field: ..., ok: [values]}; everything else is an error")
    if not {"dispatched_t", "reported_latency_s", "reported_ttft_s"} & rules.keys():
        raise ConfigError(file, "dispatched_t", "is missing, and so are reported_latency_s and reported_ttft_s: there is nothing to measure")
    for rule in rules.values():
        if rule.after is not None and (rule.after not in rules or rules[rule.after].after is not None or not rules[rule.after].moment):
            raise ConfigError(file, f"{rule.column}.after", f"{rule.after!r} is no moment that this file maps")
    dated = {rule.unit in (*EPOCH, "iso") for rule in rules.values() if rule.moment and rule.after is None}
    if len(dated) > 1:
        raise ConfigError(file, "unit", "some moments are dates and some are not; use epoch_... or iso for all of them, or for none")
    return list(rules.values())


def read(file: Path, rules: list[Rule]) -> list[ForeignRun]:
    """One run. Dates make t = 0 the earliest dispatch; other moments count from the client's own zero."""
    lines = list(objects(file))
    if not lines:
        raise InputError(file, "is empty", remedy="expected one JSON object a request")
    rows = [_row(file, line, found, rules) for line, found in lines]
    by_column = {rule.column: rule for rule in rules}
    moments = [rule for rule in rules if rule.moment]
    dated = any(rule.unit in (*EPOCH, "iso") for rule in moments)
    starts = [row[rule.column] for row in rows for rule in moments if row.get(rule.column) is not None] if dated else []
    origin = min(starts) if starts else None
    if origin is not None:
        for row in rows:
            for rule in moments:
                if row.get(rule.column) is not None:
                    row[rule.column] = round(row[rule.column] - origin, 6)
    says = []
    for column, meaning in (("session", "every request stands as a session of its own"), ("turn", "turns are counted in the order of the file"),
                            ("request_id", "requests are named by their line"), ("scheduled_t", "response times are unknown")):  # fmt: skip
        if column not in by_column:
            says.append(f"the mapping has no {column}: {meaning}")
    _complete(rows, by_column)
    return [ForeignRun("mapping", file, rows, says, started_ts=origin, facts={"mapping": {r.column: _described(r) for r in rules}})]


def _rule(file: Path, column: str, own: Any) -> Rule:
    if column not in _COLUMNS:
        raise ConfigError(file, column, f"no column of requests; there are: {', '.join(_COLUMNS)}")
    own = {"field": own} if isinstance(own, (str, int)) else own
    if not isinstance(own, dict) or not own.keys() <= _KEYS or ("field" in own) == ("value" in own):
        raise ConfigError(file, column, f"expected the path of a field, or {{field or value, {', '.join(sorted(_KEYS - {'field', 'value'}))}}}")
    rule = Rule(column, tuple(str(own.get("field", "")).split(".")) if "field" in own else (), own.get("unit"), own.get("after"),
                _values(file, column, own, "ok"), _values(file, column, own, "truncated"), own.get("value"))  # fmt: skip
    units = [*SECONDS, *([] if rule.after else [*EPOCH, "iso"])] if rule.moment else [*SECONDS] if column.endswith("_s") else ["s", "ms"] if column == "pause_ms" else []
    if rule.unit is not None and rule.unit not in units:
        raise ConfigError(file, f"{column}.unit", f"{rule.unit!r} is not allowed; allowed: {', '.join(units) or 'none'}")
    if units and "field" in own and rule.unit is None:
        raise ConfigError(file, f"{column}.unit", f"is missing; allowed: {', '.join(units)}")
    if column == "status" and not rule.ok:
        raise ConfigError(file, "status.ok", "is missing: the values that mean answered")
    if rule.value is not None and rule.column in _WORDS and rule.value not in _WORDS[rule.column]:
        raise ConfigError(file, f"{column}.value", f"{rule.value!r} is not allowed; allowed: {', '.join(_WORDS[rule.column])}")
    return rule


def _values(file: Path, column: str, own: dict[str, Any], key: str) -> tuple[Any, ...]:
    values = own.get(key, [])
    if not isinstance(values, list) or (values and column != "status"):
        raise ConfigError(file, f"{column}.{key}", "expected a list of values, of status only")
    return tuple(values)


def _row(file: Path, line: int, found: dict[str, Any], rules: list[Rule]) -> Row:
    row: Row = {"request_id": f"line-{line}"}
    for rule in rules:
        row[rule.column] = rule.value if not rule.field else _cell(file, line, rule, _at(found, rule.field))
    for rule in rules:
        if rule.after is not None and row[rule.column] is not None:
            row[rule.column] = None if row.get(rule.after) is None else row[rule.after] + row[rule.column]
    return row


def _cell(file: Path, line: int, rule: Rule, value: Any) -> Any:
    place = ".".join(rule.field)
    if rule.column == "status":
        return "ok" if _among(value, rule.ok) else "truncated" if _among(value, rule.truncated) else "error"
    if value is None:
        return None
    if rule.unit == "iso":
        return _date(file, line, place, value)
    if rule.kind == "DOUBLE":
        factor = {**SECONDS, **EPOCH}[rule.unit] if rule.unit else 1.0
        seconds = (number(value, file, line, place) or 0.0) * factor
        return seconds * 1e3 if rule.column == "pause_ms" else seconds
    if rule.kind in ("INTEGER", "BIGINT"):
        return whole(value, file, line, place)
    if rule.kind == "BOOLEAN":
        if not isinstance(value, bool):
            raise InputError(file, f"{str(value)[:60]!r} is not true or false", line=line, column=place)
        return value
    if isinstance(value, (dict, list)):
        raise InputError(file, "is not text", line=line, column=place)
    return str(value)


def _among(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(type(value) is type(a) and value == a for a in allowed)


def _date(file: Path, line: int, place: str, value: Any) -> float:
    try:
        found = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise InputError(file, f"{str(value)[:60]!r} is no ISO 8601 date", line=line, column=place) from None
    if found.tzinfo is None:
        raise InputError(file, f"{str(value)[:60]!r} has no time zone", line=line, column=place, remedy="expected an offset such as +00:00 or Z")
    return found.timestamp()


def _at(found: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _complete(rows: list[Row], mapped: dict[str, Rule]) -> None:
    """Names that every row needs: sessions and turns where the client has none."""
    seen: dict[str, int] = {}
    for row in rows:
        row["session"] = row["request_id"] if row.get("session") is None else row["session"]
        if "turn" not in mapped or row.get("turn") is None:
            row["turn"] = seen.get(row["session"], 0)
        seen[row["session"]] = seen.get(row["session"], 0) + 1


def _described(rule: Rule) -> dict[str, Any]:
    return {key: value for key, value in (("field", ".".join(rule.field)), ("unit", rule.unit), ("after", rule.after), ("value", rule.value)) if value}
