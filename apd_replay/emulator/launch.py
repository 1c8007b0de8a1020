"""An emulated cluster as the servers of a run: one process, named in the first; the others are workers that it serves too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from apd_replay.cluster.ports import free_ports
from apd_replay.cluster.servers import Server
from apd_replay.configuration import Experiment
from apd_replay.emulator.spec import HOST, READY, VARIABLE, Place, Spec, places
from apd_replay.replay.client import Address

PROCESS = "emulator"


def servers(experiment: Experiment, replicate: int, logs: Path) -> list[Server]:
    """What `experiment` asks for, on ports that are free now. The workers' logs go to `logs`. No router: the replay's own policy chooses."""
    count = experiment.cluster["prefill"] + experiment.cluster["decode"] + experiment.cluster["workers"]
    spec = Spec(experiment, replicate, places(experiment, free_ports(2 * count)), logs.absolute())
    argv = (sys.executable, "-m", "apd_replay.emulator.serve")
    process = Server(PROCESS, PROCESS, argv, {**os.environ, VARIABLE: spec.to_json()}, Address(HOST, spec.places[0].port), READY, loopback_only=False)
    return [process, *(_worker(place) for place in spec.places)]


def _worker(place: Place) -> Server:
    return Server(place.name, place.role, (), {}, Address(HOST, place.port), None, place.bootstrap_port, loopback_only=False)
