"""What a worker says of itself: /server_info, /model_info, /v1/loads and /metrics, in SGLang's names."""

from __future__ import annotations

import time
from typing import Any

from apd_replay import __version__
from apd_replay.emulator.live import LiveCluster
from apd_replay.emulator.spec import Place, Spec
from apd_replay.sim.decode import DecodeWorker

_MODES = {"prefill": "prefill", "decode": "decode", "unified": "null"}
_GAUGES = {
    "num_running_reqs": "num_running_reqs", "num_queue_reqs": "num_waiting_reqs", "num_used_tokens": "num_used_tokens", "token_usage": "token_usage",
    "max_total_num_tokens": "max_total_num_tokens", "num_prefill_bootstrap_queue_reqs": "prefill_bootstrap_queue_reqs",
    "num_prefill_inflight_queue_reqs": "prefill_inflight_queue_reqs", "num_decode_prealloc_queue_reqs": "decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs": "decode_transfer_queue_reqs", "num_retracted_reqs": "decode_retracted_queue_reqs",
}  # fmt: skip


def server_info(spec: Spec, place: Place, cluster: LiveCluster) -> dict[str, Any]:
    """`version` says that this is no SGLang."""
    hardware = spec.experiment.hardware
    return {
        **model_info(spec), "version": f"apd-replay {__version__} emulator", "disaggregation_mode": _MODES[place.role], "tp_size": 1, "dp_size": 1,
        "load_balance_method": "round_robin", "weight_version": place.name, "max_total_num_tokens": loads(place, cluster)["max_total_num_tokens"],
        "chunked_prefill_size": hardware["chunk_tokens"], "max_running_requests": hardware["max_running_requests"],
        "disaggregation_bootstrap_port": place.bootstrap_port, "internal_states": [{}],
    }  # fmt: skip


def model_info(spec: Spec) -> dict[str, Any]:
    model = spec.experiment.cluster["model"]
    return {"model_path": model, "served_model_name": model, "tokenizer_path": model, "is_generation": True, "context_length": spec.experiment.cluster["context_tokens"]}


def loads(place: Place, cluster: LiveCluster) -> dict[str, Any]:
    """One item of /v1/loads, books settled; queues of a P or D under `disaggregation`."""
    cluster.clock.catch_up()
    if place.role == "prefill":
        p = cluster.prefill[place.index]
        running, waiting, used, pool = len(p.computing), len(p.queue) + p.bootstrapping, p.held, p.pool
        queues = {"mode": "prefill", "prefill_bootstrap_queue_reqs": p.bootstrapping, "prefill_inflight_queue_reqs": p.inflight}
    else:
        w = (cluster.unified or cluster.decode)[place.index]
        w.settle()
        running, waiting, used, pool, queues = w.batch.n, w.queued(), w.used - w.evictable_in_log(), w.pool, {}
        if isinstance(w, DecodeWorker):
            queues = {"mode": "decode", "decode_prealloc_queue_reqs": len(w.prealloc), "decode_transfer_queue_reqs": len(w.transfer),
                      "decode_retracted_queue_reqs": len(w.retracted)}  # fmt: skip
            waiting += len(w.prealloc) + len(w.transfer) + len(w.retracted)
    return {"dp_rank": 0, "timestamp": time.time(), "num_running_reqs": running, "num_waiting_reqs": waiting, "num_used_tokens": used, "num_total_tokens": used,
            "max_total_num_tokens": pool, "token_usage": round(used / pool, 4), "max_running_requests": cluster.max_running,
            **({"disaggregation": queues} if queues else {})}  # fmt: skip


def metrics(spec: Spec, place: Place, cluster: LiveCluster) -> str:
    """Prometheus text."""
    item = loads(place, cluster)
    values = {**item, **item.get("disaggregation", {})}
    engine = "unified" if place.role == "unified" else place.role
    model = spec.experiment.cluster["model"].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    out = []
    for name, key in _GAUGES.items():
        if key in values:
            out += [f"# TYPE sglang:{name} gauge", f'sglang:{name}{{model_name="{model}",engine_type="{engine}",tp_rank="0"}} {values[key]}']
    return "\n".join(out) + "\n"
