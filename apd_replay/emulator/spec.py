"""What one emulated cluster is: an experiment, the replicate whose seed it takes, where each worker listens, where the logs go."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from apd_replay.configuration import Experiment

HOST = "127.0.0.1"
VARIABLE = "APD_EMULATOR"  # holds a Spec as JSON for the process that serves it
READY = "The emulated workers are ready"


@dataclass(frozen=True, slots=True)
class Place:
    """One worker: `role` is `prefill`, `decode` or `unified`, `index` counts within it. `bootstrap_port` is what requests name a P by;
    nothing listens there."""

    name: str
    role: str
    index: int
    port: int
    bootstrap_port: int | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class Spec:
    """`logs` None: no worker logs."""

    experiment: Experiment
    replicate: int
    places: tuple[Place, ...]
    logs: Path | None

    def to_json(self) -> str:
        return json.dumps({"id": self.experiment.id, **self.experiment.record(), "replicate": self.replicate,
                           "places": [asdict(p) for p in self.places], "logs": str(self.logs) if self.logs else None})  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> Spec:
        told = json.loads(text)
        return cls(Experiment(told["id"], told["settings"], told["cluster"], told["hardware"]), told["replicate"],
                   tuple(Place(**p) for p in told["places"]), Path(told["logs"]) if told["logs"] else None)  # fmt: skip


def places(experiment: Experiment, ports: list[int]) -> tuple[Place, ...]:
    """A place for every worker, P's first; `ports` has two for each: one to listen on, and for a P its bootstrap port."""
    shape = experiment.cluster
    roles = [("prefill", i) for i in range(shape["prefill"])] + [("decode", i) for i in range(shape["decode"])] + [("unified", i) for i in range(shape["workers"])]
    return tuple(
        Place(f"{'worker' if role == 'unified' else role}-{i}", role, i, ports[2 * k], ports[2 * k + 1] if role == "prefill" else None)
        for k, (role, i) in enumerate(roles)
    )
