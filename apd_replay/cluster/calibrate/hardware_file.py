"""The file of config/hardware that a fit makes: coefficients, and in comments where each comes from and by how much it misses."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Any

import yaml

from apd_replay.cluster.calibrate.fit import BACKENDS, Fit, Fitted, kv_bytes_per_token
from apd_replay.errors import ConfigError, RunError

DEFAULT_CHUNK = 8192
SINGLE = ("handshake_s", "rpc_s", "admission_s", "append_s", "noise_sigma")
OPTIONAL = ("append_s",)  # a file need not have it
METHOD = {
    "decode": "Mean time a token over the window in which the whole batch decodes; prompts cached before.",
    "prefill": "Wall time at the client until a prompt's only token, one prompt at a time; median of its repeats.",
    "transfer.mooncake": "Mooncake: the P's own clock and size, prompts of one chunk on an idle pair, first of each size left out.",
    "transfer.mooncake_tcp": "Mooncake over TCP, likewise.",
    "transfer.nixl": "NIXL, likewise.",
    "handshake_s": "First token through P and D less prefill, transfer and one decode step.",
    "rpc_s": "A call's way through the scheduler and back.",
    "append_s": "Least time of a prefill batch on a D: first tokens of direct appends, one at a time, first of each length left out.",
    "admission_s": "What calls at a known rate add to a decode step.",
    "noise_sigma": "Repeats of one prompt around their mean.",
}


def render(fit: Fit, gpu: str, model: str, base: dict[str, Any] | None = None, base_name: str = "") -> str:
    """YAML text. What was not measured is taken from `base`, another hardware file's content, and says so; without one it is an error."""
    server, machine = fit.server, fit.machine
    lines = [
        f"# {gpu} with {model}, measured by `apd calibrate`{' on ' + machine['date'] if machine.get('date') else ''}.",
        f"# SGLang {server.get('sglang')}, attention backend {server.get('attention_backend')}, page size {server.get('page_size')}, model {PurePath(server['model']).name}; driver {machine.get('driver', 'not known')}.",
        "# Fits minimise relative errors; residuals are predicted / measured - 1.",
        f"gpu: {gpu}",
        f"model: {model}",
        f"kv_bytes_per_token: {kv_bytes_per_token(server)}",
        "# As the server reported it.",
        f"kv_pool_tokens: {server['kv_pool_tokens']}",
        f"max_running_requests: {server.get('max_running_requests') or 256}",
        f"chunk_tokens: {server.get('chunk_tokens') or DEFAULT_CHUNK}",
    ]
    for name in ("decode", "prefill"):
        found, comment = _group(fit, name, base, base_name)
        lines += [comment, f"{name}:", *(f"  {key}: {_number(value)}" for key, value in found.items())]
    lines.append("transfer:")
    for backend in BACKENDS:
        found, comment = _group(fit, f"transfer.{backend}", base, base_name)
        lines += [f"  {comment}", f"  {backend}: {{{', '.join(f'{k}: {_number(v)}' for k, v in found.items())}}}"]
    for name in SINGLE:
        if name in OPTIONAL and name not in fit.groups and name not in (base or {}):
            continue
        found, comment = _group(fit, name, base, base_name)
        lines += [comment, f"{name}: {_number(found[name])}"]
    return "\n".join(lines) + "\n"


def write(file: Path, text: str) -> None:
    """Replace `file` whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.new")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, file)


def read_base(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(file, "(file)", f"cannot be read: {error}".replace("\n", " ")) from None
    if not isinstance(content, dict):
        raise ConfigError(file, "(file)", "expected a hardware file")
    return content


def _group(fit: Fit, name: str, base: dict[str, Any] | None, base_name: str) -> tuple[dict[str, Any], str]:
    if name in fit.groups:
        return fit.groups[name].values, f"# {METHOD[name]} {_quality(fit.groups[name])}"
    if base is None:
        raise RunError(f"{name}: {fit.missing[name]}; measure it, or name a file to take it from with --base")
    found: Any = base
    for key in name.split("."):
        if key not in found:
            raise RunError(f"{name}: {fit.missing[name]}, and {base_name} lacks it")
        found = found[key]
    return found if isinstance(found, dict) else {name: found}, f"# NOT measured here ({fit.missing[name]}): taken from {base_name}."


def _quality(found: Fitted) -> str:
    text = f"{found.points} points"
    if found.low or found.high:
        text += f", residuals {found.low:+.1%} to {found.high:+.1%}"
    return f"{text}. {found.note}".rstrip()


def _number(value: float) -> str:
    """Four digits, in a form that YAML 1.1 reads as a number (1.0e-05, not 1e-05)."""
    if isinstance(value, int):
        return str(value)
    text = f"{value:.4g}"
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return text
