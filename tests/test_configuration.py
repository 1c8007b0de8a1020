"""config/: whatever is wrong in it is said with file, key and what is allowed, before anything runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from apd_replay import configuration
from apd_replay.errors import ConfigError

CONFIG = Path(__file__).parent.parent / "config"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    shutil.copytree(CONFIG, tmp_path / "config")
    return tmp_path / "config" / "config.yaml"


def edit(file: Path, **change: object) -> None:
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **change}, sort_keys=False))


def edit_experiment(config: Path, name: str, **change: object) -> None:
    file = config.parent / "experiments" / "matrix.yaml"
    content = yaml.safe_load(file.read_text())
    content["experiments"][name].update(change)
    file.write_text(yaml.safe_dump(content, sort_keys=False))


def test_the_shipped_files_are_valid() -> None:
    for matrix in sorted(p.stem for p in (CONFIG / "experiments").glob("*.yaml")):
        experiments = configuration.load(CONFIG / "config.yaml", matrix).experiments
        assert bool(experiments) == (matrix != "imported")  # `imported` replays nothing on purpose


def test_the_matrix_is_that_of_the_claims() -> None:
    e = configuration.load(CONFIG / "config.yaml").experiments
    assert list(e) == [f"E{k}" for k in range(11)]
    assert [x.id for x in e.values() if x["resident"]] == ["E0", "E1", "E2", "E4", "E5", "E7", "E9"]
    assert {x["time_scale"] for x in (e["E2"], e["E3"], e["E4"], e["E9"], e["E10"])} == {1}
    assert {x["first_sessions"] for x in (e["E2"], e["E3"], e["E4"], e["E7"], e["E8"])} == {12}
    assert e["E5"]["concurrency"] == 4 and e["E0"]["concurrency"] == 32 and e["E0"]["replicates"] == 10


def test_defaults_come_from_the_schema(config: Path) -> None:
    e0 = configuration.load(config).experiments["E0"]
    assert e0["max_pause_s"] == 2.0 and e0["mechanisms"]["latch"] is True and e0.gap_scale == 10
    edit_experiment(config, "E0", gap_scale=1)
    e0 = configuration.load(config).experiments["E0"]
    assert (e0.gap_scale, e0.arrival_scale) == (1, 10)


def test_an_experiment_goes_by_its_name_in_the_list_too(config: Path) -> None:
    edit(config, trace="my-trace.jsonl")
    loaded = configuration.load(config)
    assert loaded.experiment("E0") is loaded.experiment("E0@my-trace") is loaded.experiments["E0@my-trace"]
    with pytest.raises(ConfigError, match=r"experiments/matrix\.yaml: experiments: no 'E99'; there are: E0@my-trace, "):
        loaded.experiment("E99")
    file = config.parent / "experiments/matrix.yaml"
    content = yaml.safe_load(file.read_text())
    content["experiments"]["E0@other"] = content["experiments"]["E0"]
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(ConfigError, match="several are 'E0'; there are: E0@my-trace, "):
        configuration.load(config).experiment("E0")


def test_another_trace_or_engine_is_another_id(config: Path) -> None:
    edit(config, trace="traces/acg_seedlike.jsonl.gz")
    assert "E0@acg_seedlike" in configuration.load(config).experiments
    edit_experiment(config, "E0", engine="sglang")
    found = configuration.load(config).experiments
    assert "E0@sglang-acg_seedlike" in found and found["E0@sglang-acg_seedlike"].base == "E0"


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ({"concurency": 3}, "experiments.E0.concurency", "unknown key; allowed: "),
        ({"concurrency": 0}, "experiments.E0.concurrency", "minimum"),
        ({"concurrency": "many"}, "experiments.E0.concurrency", '"many" is not allowed; expected integer'),
        ({"backpressure": "cubic"}, "experiments.E0.backpressure", "allowed: off, linear, composite"),
        ({"cluster": "9p9d"}, "experiments.E0.cluster", "there are: "),
        ({"hardware": "abacus"}, "experiments.E0.hardware", "there are: "),
        ({"design": "dpp"}, "experiments.E0.design", "unknown design 'dpp'; allowed: kvc, dp"),
        ({"mechanisms": {"lach": False}}, "experiments.E0.mechanisms.lach", "unknown key"),
        ({"cluster": "8dp"}, "experiments.E0.resident", "decode workers"),
    ],
)
def test_a_wrong_experiment_key_is_named(config: Path, change: dict[str, object], key: str, said: str) -> None:
    edit_experiment(config, "E0", **change)
    with pytest.raises(ConfigError) as error:
        configuration.load(config)
    assert error.value.key == key and said in str(error.value) and "\n" not in str(error.value)
    assert Path(error.value.file).name == "matrix.yaml"


def test_a_wrong_config_key_is_named(config: Path) -> None:
    edit(config, trase="x")
    with pytest.raises(ConfigError, match=r"config.yaml: trase: unknown key; allowed: matrix, remedies, replicates, results, trace, trace_format"):
        configuration.load(config)


def test_broken_yaml_is_placed(config: Path) -> None:
    config.write_text("trace: [\n")
    with pytest.raises(ConfigError, match=r"config.yaml: line 2, column 1: not valid YAML"):
        configuration.load(config)


GRID = {"experiments": ["E0"], "vary": {"time_scale": {"S1": 1, "S10": 10}, "concurrency": {"C4": 4, "C32": 32}}, "settings": {"rows": "no_logs"}}


def edit_grid(config: Path, **change: object) -> None:
    edit(config.parent / "experiments" / "matrix.yaml", grids=[{**GRID, **change}])


def test_a_grid_adds_every_combination_but_the_experiment_itself(config: Path) -> None:
    edit_grid(config)
    found = configuration.load(config).experiments
    new = {name: (e["time_scale"], e["concurrency"], e["rows"]) for name, e in found.items() if "." in name}
    assert new == {"E0.S1.C4": (1, 4, "no_logs"), "E0.S1.C32": (1, 32, "no_logs"), "E0.S10.C4": (10, 4, "no_logs")}
    assert found["E0"]["rows"] == "all"


def test_a_trace_in_a_grid_names_its_experiments(config: Path) -> None:
    edit_grid(config, vary={"trace": ["a/one.jsonl", "two.csv"]})
    assert [name for name in configuration.load(config).experiments if "@" in name] == ["E0@one", "E0@two"]


@pytest.mark.parametrize(("change", "message"), [
    ({"experiments": ["E99"]}, r"grids.0.experiments: unknown experiment 'E99'; allowed: E0, E1"),
    ({"vary": {"speed": [1]}}, r"grids.0: E0.speed: unknown key"),
    ({"vary": 3}, r"grids.0.vary: 3 is not allowed; expected object"),
    ({"more": 3}, r"grids.0.more: unknown key; allowed: experiments, settings, vary"),
])  # fmt: skip
def test_a_wrong_grid_is_said(config: Path, change: dict[str, object], message: str) -> None:
    edit_grid(config, **change)
    with pytest.raises(ConfigError, match=message):
        configuration.load(config)


def test_the_pool_scale_reaches_every_worker(config: Path) -> None:
    edit_experiment(config, "E0", kv_pool_scale=0.5)
    e0 = configuration.load(config).experiments["E0"]
    assert (e0.hardware["kv_pool_tokens"], e0.cluster["kv_pool_tokens"]) == (73_700, None)
    edit(config.parent / "clusters" / "2p6d.yaml", kv_pool_tokens=1001)
    e0 = configuration.load(config).experiments["E0"]
    assert (e0.hardware["kv_pool_tokens"], e0.cluster["kv_pool_tokens"]) == (73_700, 500)


def test_a_coefficient_may_be_scaled_to_nothing_but_not_out_of_its_bounds(config: Path) -> None:
    edit_experiment(config, "E0", hardware_scale={"rpc_s": 0})
    assert configuration.load(config).experiments["E0"].hardware["rpc_s"] == 0
    for name, factor in (("transfer.mooncake.bytes_per_s", 0), ("decode.expert_share", 100)):
        edit_experiment(config, "E0", hardware_scale={name: factor})
        with pytest.raises(ConfigError, match=rf"E0\.hardware_scale\.{name}: "):
            configuration.load(config)


def test_a_coefficient_is_scaled_by_its_name(config: Path) -> None:
    edit_experiment(config, "E0", hardware_scale={"transfer.mooncake.bytes_per_s": 0.1, "rpc_s": 10})
    loaded = configuration.load(config).experiments
    assert loaded["E0"].hardware["transfer"]["mooncake"]["bytes_per_s"] == pytest.approx(0.1 * loaded["E1"].hardware["transfer"]["mooncake"]["bytes_per_s"])
    assert loaded["E0"].hardware["rpc_s"] == pytest.approx(10 * loaded["E1"].hardware["rpc_s"])
    edit_experiment(config, "E0", hardware_scale={"transfer.pigeon": 2})
    with pytest.raises(ConfigError, match=r"experiments.E0.hardware_scale.transfer.pigeon: is no coefficient"):
        configuration.load(config)
