"""Messages that fill a log besides batch lines, read many of a kind at a time: their columns are built together, not a row each.

What a message means stays where it is: the same patterns (failures.py, time_stats.py, events.py) are laid over all messages that start
alike. A message that fits none of them, or stands in a line with anything odd, goes to the parser. tests/logs/test_log_fast.py holds
both ways against each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from apd_replay.logs import events, failures, time_stats
from apd_replay.logs.prefix import STAMP, epoch, rank
from apd_replay.logs.spool import RANKS

HEAD = 8  # characters that a message is sorted by
_DETAIL_LENGTH = 500
# what most lines between batch lines are; such a line is only counted
_ACCESS = re.compile(r'INFO:     [\d.]+:\d+ - "(?:GET|POST) [\w/.?=&-]+ HTTP/1\.1" 200 OK')
_GLOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w./+-]+:\d+\] (?!.*(?:timeout|listening on)).*\S")
_ODD = re.compile(r'[^ !#-\[\]-~]|.\[2|\.cpp:')  # what may be more than one piece, and what JSON would escape
_ODD_ACCESS = re.compile(r"[^ -~]|.\[2|\.cpp:")
_RULES = ("Session trim: ", "KV cache pool is full. Retract requests.", "Session opened: ", "Session closed: ", "Session KV released: ")

Columns = dict[str, Any]
Matches = list[re.Match[str]]


class Prefix(NamedTuple):
    """What stands in front of messages, read once: many lines share a second."""

    stamp: float
    tags: str


@lru_cache(maxsize=8192)
def prefix(text: str) -> Prefix | None:
    """`[stamp tags]`; None where the stamp is no time."""
    match = STAMP.fullmatch(text)
    stamp = epoch(match[1], match[2], match[3]) if match else None
    return None if match is None or stamp is None else Prefix(stamp, match[4].strip())


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of message. `read`: the columns of its rows, as lists or Arrow arrays; None: the messages are only counted, as `name`."""

    pattern: re.Pattern[str]
    name: str
    table: str = ""  # "events", "stats"
    read: Callable[[Matches, list[str]], Columns] | None = None
    odd: re.Pattern[str] = _ODD


@dataclass
class Read:
    """Messages of one form that were read: `at` (line numbers from 0 in the block), their stamps, columns, and what to count."""

    form: Form
    at: list[int]
    stamps: list[float]
    tags: list[str]
    columns: Columns
    counts: Counter[str] = field(default_factory=Counter)
    sides: set[str] = field(default_factory=set)


def read(form: Form, at: list[int], texts: list[str], starts: list[int]) -> Read | None:
    """Those of the lines that have this form; `starts`: where the message starts in each."""
    if _any_odd("\n".join(texts), len(texts), form):
        kept = [not form.odd.search(text) for text in texts]
        at, texts, starts = _only(kept, at), _only(kept, texts), _only(kept, starts)
    matches = [form.pattern.fullmatch(text, start) for text, start in zip(texts, starts, strict=True)]
    prefixes = [prefix(text[:start]) for text, start in zip(texts, starts, strict=True)]
    if None in matches or None in prefixes:
        kept = [m is not None and p is not None for m, p in zip(matches, prefixes, strict=True)]
        at, texts, starts, matches, prefixes = _only(kept, at), _only(kept, texts), _only(kept, starts), _only(kept, matches), _only(kept, prefixes)
    if not at:
        return None
    out = Read(form, at, [p.stamp for p in prefixes if p], [p.tags for p in prefixes if p], {})
    if form.read is None:
        out.counts[form.name] = len(at)
        return out
    out.columns = form.read([m for m in matches if m], [text[start : start + _DETAIL_LENGTH] for text, start in zip(texts, starts, strict=True)])
    out.counts.update(out.columns.pop("counted", None) or {form.name: len(at)})
    out.sides = {side for side in set(out.columns.get("role", ())) if side}
    if any(out.tags):
        for name, tag in RANKS.items():
            ranks = {tags: rank(tags, tag) for tags in set(out.tags)}
            out.columns[name] = [ranks[tags] for tags in out.tags]
    return out


def _any_odd(joined: str, count: int, form: Form) -> bool:
    """Whether any of the lines has something odd, found without looking at each."""
    escaped = form.odd is _ODD and ('"' in joined or "\\" in joined)
    return escaped or not joined.replace("\n", "").isprintable() or not joined.isascii() or joined.count("[2") != count or ".cpp:" in joined


def is_plain_glog(text: str) -> bool:
    """A line of Mooncake that is only counted."""
    return _GLOG.fullmatch(text) is not None and text.isascii() and text.isprintable()


def _only(kept: list[bool], values: list[Any]) -> list[Any]:
    return [value for value, keep in zip(values, kept, strict=True) if keep]


def _columns(matches: Matches) -> dict[str, list[Any]]:
    """The named groups of matches of one pattern."""
    names = list(matches[0].re.groupindex)
    return dict(zip(names, map(list, zip(*(match.group(*names) if len(names) > 1 else (match[1],) for match in matches), strict=True)), strict=True))


# the forms ----------------------------------------------------------------------------------------------------------


def _failures(matches: Matches, _: list[str]) -> Columns:
    heads, ranks, rids, rooms, reasons = zip(*(match.groups() for match in matches), strict=True)
    explained = {key: _explain(*key) for key in set(zip(heads, reasons, strict=True))}
    told = [explained[key] for key in zip(heads, reasons, strict=True)]
    rest = [failures.typical_rest(*words, endpoint=bool(t["rest"])) for *words, t in zip(heads, ranks, rids, told, strict=True)]
    return {
        "room": list(map(failures.room_number, rooms)), "kind": [t["kind"] for t in told], "detail": [t["detail"] for t in told],
        "peer": [t["peer"] for t in told], "role": [t["side"] for t in told], "rest": rest, "counted": Counter(f"{head} failed" for head in heads),
    }  # fmt: skip


def _explain(head: str, reason: str) -> dict[str, Any]:
    row: dict[str, Any] = {"peer": None, "rest": {}}
    failures.explain(row, reason.rstrip(), "prefill" if head.startswith("Prefill") else "decode")
    return row


def _time_stats(matches: Matches, _: list[str]) -> Columns:
    groups = _columns(matches)
    out: Columns = {name: [None if value is None else kind(value) for value in groups[name]] for name, kind in time_stats.TYPES.items() if name in groups}
    return {**out, "source": ["time_stats"] * len(matches), "role": [side if side in ("prefill", "decode", "unified") else None for side in out["side"]]}


def _columns_of(rule: events.Rule) -> Callable[[Matches, list[str]], Columns]:
    def columns(matches: Matches, messages: list[str]) -> Columns:
        groups = _columns(matches)
        out: Columns = {"kind": [rule.kind] * len(matches), "detail": messages}
        for name in ("tokens", "room"):
            if name in groups:
                out[name] = [None if value is None else int(value) for value in groups.pop(name)]
        for name in ("session", "peer"):
            if name in groups:
                out[name] = groups.pop(name)
        if groups:
            pairs = [[None if value is None else f'"{name}": "{value[:_DETAIL_LENGTH]}"' for value in values] for name, values in groups.items()]
            out["rest"] = ["{" + ", ".join(p for p in row if p) + "}" for row in zip(*pairs, strict=True)]
        return out

    return columns


_ACCESSES = Form(_ACCESS, "access", odd=_ODD_ACCESS)
_FAILURES = Form(failures.TYPICAL, "failure", "events", _failures)
_STATS = Form(time_stats.TYPICAL, "time stats", "stats", _time_stats)


# the first `HEAD` characters of a message -> the forms that it may have
HEADS: dict[bytes, tuple[Form, ...]] = {b"INFO:   ": (_ACCESSES,), b"ReqTimeS": (_STATS,)}
HEADS |= dict.fromkeys((b"Prefill ", b"Decode t", b"Decode h"), (_FAILURES,))
for _rule in events.RULES:
    if _rule.head in _RULES and _rule.pattern is not None:
        _head, _form = _rule.head[:HEAD].encode(), Form(_rule.pattern, _rule.kind, "events", _columns_of(_rule))
        HEADS[_head] = (*HEADS.get(_head, ()), _form)
