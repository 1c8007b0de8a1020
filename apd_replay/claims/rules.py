"""config/claims.yaml as objects: what each claim says and what decides it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apd_replay import configuration

BOUNDS = ("at_least", "at_most", "above", "below", "clear_of")


@dataclass(frozen=True, slots=True)
class Effect:
    """A metric over the replicates of some experiments. With a `bound` (one of BOUNDS) and a `threshold` it is a condition;
    the threshold is on the scale that is shown."""

    metric: str
    says: str
    terms: Mapping[str, float]
    name: str
    scope: str | None = None
    over: bool = False
    log: bool = False
    change: bool = False
    bound: str | None = None
    threshold: float = 0.0
    refuted_below: float | None = None
    refuted_from_n: int = 3
    counter: bool = False
    unit: str | None = None

    @property
    def label(self) -> str:
        """`E1/E0` of a ratio, `E1-E0` of a difference, `E0` of a single experiment."""
        plus = [e for e, w in self.terms.items() if w > 0]
        minus = [e for e, w in self.terms.items() if w < 0]
        sign = "/" if self.log else "-"
        return sign.join(filter(None, ["+".join(plus), "+".join(minus)]))


@dataclass(frozen=True, slots=True)
class Claim:
    id: str
    statement: str
    structural: str | None
    impact: str
    need_all: bool
    effects: tuple[Effect, ...]
    engines: tuple[str, ...] | None
    assumed_by_simulator: bool
    confounders: tuple[str, ...]
    fix: str | None
    fix_effect: Effect | None
    notes: Mapping[str, str]
    withdrawn: str | None
    needs: frozenset[str] = frozenset()

    @property
    def conditions(self) -> list[Effect]:
        return [e for e in self.effects if e.bound and not e.counter]


@dataclass(frozen=True, slots=True)
class Erratum:
    """A sum of the seed documents (`said`), what is wrong with it, and the figure that the runs give. `claim`: where it is printed."""

    claim: str
    said: str
    remark: str
    effect: Effect | None


@dataclass(frozen=True, slots=True)
class Rules:
    claims: tuple[Claim, ...]
    errata: tuple[Erratum, ...]


def load(config: Path) -> Rules:
    """The rules of `config`/claims.yaml; a ConfigError names the key that is wrong."""
    content = configuration.claim_rules(config)
    claims = tuple(_claim(name, c) for name, c in content["claims"].items())
    errata = tuple(Erratum(e["claim"], e["said"], e["remark"], _effect(e["effect"]) if "effect" in e else None) for e in content.get("errata", []))
    return Rules(claims, errata)


def _claim(name: str, c: dict[str, Any]) -> Claim:
    fix = c.get("fix") or {}
    return Claim(
        id=name, statement=c["statement"], structural=c.get("structural"), impact=c.get("impact", ""), need_all=c.get("combine", "all") == "all",
        effects=tuple(map(_effect, c.get("effects", []))), engines=tuple(c["engines"]) if c.get("engines") else None,
        assumed_by_simulator=c.get("assumed_by_simulator", False), confounders=tuple(c.get("confounders", [])), fix=fix.get("text"),
        fix_effect=_effect(fix["effect"]) if "effect" in fix else None, notes=c.get("notes", {}), withdrawn=c.get("withdrawn"), needs=frozenset(c.get("needs", [])),
    )  # fmt: skip


def _effect(e: dict[str, Any]) -> Effect:
    bound = next((b for b in BOUNDS if b in e), None)
    return Effect(
        metric=e["metric"], says=e["says"], terms=e.get("terms", {"E0": 1}), name=e.get("as") or e["metric"], scope=e.get("scope"),
        over=e.get("over", False), log=e.get("scale") == "log", change=e.get("change", False), bound=bound,
        threshold=float(e[bound]) if bound else 0.0, refuted_below=e.get("refuted_below"), refuted_from_n=e.get("refuted_from_n", 3),
        counter=e.get("counter", False), unit=e.get("unit"),
    )  # fmt: skip
