"""A stored run is whole or absent, whatever happens to its writer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from apd_replay.errors import InputError, RunError
from apd_replay.replay import store

RUN = "0123456789abcdef"


def fill(directory: Path) -> None:
    (directory / "logs").mkdir()
    (directory / "logs" / "decode-0.log").write_text("one line\n")
    (directory / "run.json").write_text('{"engine": "sim", "experiment": "other", "replicate": 9}')


def names(results: Path) -> list[str]:
    return sorted(p.name for p in (results / "store").iterdir())


def test_a_run_is_sealed_with_checksums_that_hold(tmp_path: Path) -> None:
    with store.adding(tmp_path, RUN) as directory:
        assert directory is not None
        fill(directory)
        assert not store.stored(tmp_path, RUN).exists()
    assert names(tmp_path) == [RUN]
    check = subprocess.run(["sha256sum", "-c", store.CHECKSUMS], cwd=tmp_path / "store" / RUN, capture_output=True, text=True)
    assert check.returncode == 0 and "logs/decode-0.log: OK" in check.stdout


def test_a_run_that_is_there_is_not_filled_again(tmp_path: Path) -> None:
    with store.adding(tmp_path, RUN) as directory:
        assert directory is not None
        fill(directory)
    with store.adding(tmp_path, RUN) as directory:
        assert directory is None


def test_a_failed_fill_is_kept_aside_with_its_logs(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), store.adding(tmp_path, RUN) as directory:
            assert directory is not None
            fill(directory)
            raise ZeroDivisionError
    aside = [p for p in (tmp_path / "store").iterdir() if p.is_dir()]
    assert len(aside) == 2 and all(p.name.startswith(f".{RUN}.failed-2") for p in aside)
    assert all((p / "logs" / "decode-0.log").is_file() for p in aside)


def test_a_fill_without_run_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run\.json"), store.adding(tmp_path, RUN) as directory:
        assert directory is not None
    assert not store.stored(tmp_path, RUN).exists()


def test_a_killed_fill_is_absent_and_the_next_one_goes_on(tmp_path: Path) -> None:
    code = f"""
import pathlib, time
from apd_replay.replay import store
with store.adding(pathlib.Path({str(tmp_path)!r}), {RUN!r}) as directory:
    (directory / "run.json").write_text("{{}}")
    print("filling", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "filling\n"
        os.kill(writer.pid, signal.SIGKILL)
    assert not store.stored(tmp_path, RUN).exists()
    with store.adding(tmp_path, RUN) as directory:
        assert directory is not None and not list(directory.iterdir())
        fill(directory)
    assert store.stored(tmp_path, RUN).is_dir()
    assert any(name.startswith(f".{RUN}.failed-") for name in names(tmp_path))


def test_a_second_writer_waits_and_finds_the_run(tmp_path: Path) -> None:
    filled: list[bool] = []
    started = threading.Event()

    def write() -> None:
        with store.adding(tmp_path, RUN) as directory:
            filled.append(directory is not None)
            if directory is not None:
                started.set()
                threading.Event().wait(0.1)
                fill(directory)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert started.is_set() and sorted(filled) == [False, False, False, True]
    assert names(tmp_path) == [RUN]


def test_the_manifest_names_the_replicate_not_the_first_user(tmp_path: Path) -> None:
    with store.adding(tmp_path, RUN) as directory:
        assert directory is not None
        fill(directory)
    file = store.write_manifest(tmp_path, "E0", 3, RUN, config={"title": "new"})
    assert file == tmp_path / "runs" / "E0" / "r3.json"
    assert json.loads(file.read_text()) == {"engine": "sim", "experiment": "E0", "replicate": 3, "run_id": RUN, "config": {"title": "new"}}
    assert [p.name for p in file.parent.iterdir()] == ["r3.json"]
    assert store.run_directory(file) == store.stored(tmp_path, RUN) == store.run_directory(store.stored(tmp_path, RUN))
    assert [m["replicate"] for m in store.manifests(tmp_path)] == [3]


def test_a_manifest_of_a_lost_run_says_so(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "E0" / "r3.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"run_id": "gone"}')
    with pytest.raises(InputError, match=r"r3\.json: names run gone, but there is no .*store/gone"):
        store.run_directory(file)
