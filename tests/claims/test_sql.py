"""Each claim's SQL on a few rows whose figures can be done by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from apd_replay.claims.evidence import question
from apd_replay.claims.rules import load

from .conftest import World

ROOT = Path(__file__).parents[2]
CLAIMS = ("s0", "s1", "s2", "s3", "s4", "s5", "s7", "s8", "s9", "s10", "headline")


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_empty_folder_gives_no_evidence_and_no_error(world: World, claim: str) -> None:
    assert world.evidence(claim) == []


@pytest.mark.parametrize("claim", [*CLAIMS, "errata"])
def test_the_first_line_is_the_claim_in_words(claim: str) -> None:
    first = question(claim).splitlines()[0]
    assert first.startswith("-- ") and first.endswith((".", "again."))


def test_s0_spread_is_max_over_min_and_two_clean_replicates_do_not_differ(world: World) -> None:
    ok, bad = {"status": "ok"}, {"status": "error", "error_kind": "aborted"}
    world.run("E0", 1, requests=[bad, bad, ok])
    world.run("E0", 2, requests=[bad, ok, {**ok, "finished_t": 4.0}])
    world.run("E6", 1, requests=[ok])
    world.run("E6", 2, requests=[ok])
    assert world.value("s0", "errors", 1) == 2
    assert world.value("s0", "spread", None, "errors") == 2.0
    assert world.value("s0", "spread", None, "latency_p50") == 1.5  # medians 2 and 3
    assert world.value("s0", "spread", None, "errors", experiment="E6") == 1.0


def test_s0_some_errors_against_none_differ_without_bound(world: World) -> None:
    world.run("E0", 1, requests=[{"status": "error"}])
    world.run("E0", 2, requests=[{}])
    assert world.value("s0", "spread", None, "errors") == math.inf


def session(name: str, direct: int, fallback: int, **more: object) -> list[dict[str, object]]:
    paths = ["seed"] + ["direct"] * direct + ["fallback"] * fallback
    return [{"session": name, "turn": k, "path": p, **more} for k, p in enumerate(paths)]


def test_s1_rates_bins_and_constant_sessions(world: World) -> None:
    big, small = {"input_tokens": 900}, {"input_tokens": 300}
    for replicate in (1, 2):
        world.run("E0", replicate, requests=[
            *session("never", 0, 5, **big), *session("edge", 1, 4), *session("always", 5, 0, **small),
            *session("most", 4, 1, **small), *session("changes", *((0, 5) if replicate == 1 else (3, 2))), *session("alone", 0, 0),
        ])  # fmt: skip
    bins = {f["scope"]: f["value"] for f in world.figures("s1", "direct_rate_bin") if f["replicate"] == 1}
    assert bins == {"0-20": 2, "20-40": 1, "40-60": 0, "60-80": 0, "80-100": 2}  # 1/5 is in 20-40, 4/5 in 80-100; `alone` has no rate
    assert world.value("s1", "starved_in_all", None) == 1
    assert world.value("s1", "lucky_in_all", None) == 2
    assert world.value("s1", "starved_in_all_expected", None) == pytest.approx(5 * (2 / 5) * (1 / 5))
    assert world.value("s1", "peak_input_ratio", None) == 3.0
    assert world.value("s1", "end_bins_share", 1) == 4 / 5


def test_s1_a_failed_direct_turn_counts_as_direct_and_two_ds_count_as_two(world: World) -> None:
    rows = [{"turn": 0}, {"turn": 1, "path": "direct", "status": "error"}, {"turn": 2, "path": "fallback", "decode_worker": "decode-1"}]
    world.run(requests=rows)
    assert world.value("s1", "distinct_decode_workers_mean") == 2.0
    assert {f["scope"] for f in world.figures("s1", "direct_rate_bin") if f["value"]} == {"40-60"}


def test_s1_says_nothing_of_dp(world: World) -> None:
    world.run("E6", requests=[{"path": "dp", "turn": k} for k in range(3)])
    assert world.evidence("s1") == []


def room(number: int, **more: object) -> dict[str, object]:
    return {"bootstrap_room": number, "session": f"s{number}", **more}


FAILED = {"status": "error", "error_kind": "kv_transfer", "finished_t": 32.0}
REJECTED = {"status": "error", "error_kind": "peer_dead", "finished_t": 33.0}


def test_s2_trims_and_peaks_are_unknown_without_a_log(world: World) -> None:
    rows = [room(1, **FAILED), room(2, **REJECTED), room(3, decode_worker="decode-1")]
    trim = {"worker": "decode-0", "kind": "trim"}
    world.run("E0", 1, requests=rows, events=[trim], samples=[{"worker": "decode-0", "kind": "prefill", "token_usage": 0.97},  # a D with the plugin appends
                                                                   {"worker": "decode-0", "token_usage": 0.5}])  # fmt: skip
    world.run("E0", 2, requests=rows)
    assert world.value("s2", "failed_rooms", 1, "decode-0") == 2
    assert world.value("s2", "failed_rooms", 1, "decode-1") == 0
    assert world.value("s2", "trims", 1, "decode-0") == 1
    assert world.value("s2", "failed_per_trim", 1, "decode-0") == 2
    assert world.value("s2", "peak_token_usage", 1, "decode-0") == 0.97
    assert world.value("s2", "overrun_share", 1) == 1.0  # of the one D that has a log
    assert [f for f in world.figures("s2") if f["replicate"] == 2 and f["metric"] != "failed_rooms"] == []


def test_s2_failures_without_any_trim_are_infinitely_many_a_trim(world: World) -> None:
    world.run(requests=[room(1, **FAILED)], samples=[{"worker": "decode-0", "token_usage": 0.5}])
    assert world.value("s2", "trims", 1, "decode-0") == 0
    assert world.value("s2", "failed_per_trim", 1, "decode-0") == math.inf


def test_s3_waits_are_those_of_failed_transfers_only(world: World) -> None:
    timeout = {"status": "error", "error_kind": "client_timeout", "finished_t": 60.0}
    world.run(requests=[room(1, **FAILED), room(2, **{**REJECTED, "dispatched_t": 32.9}), room(3, **timeout), {}])
    assert world.value("s3", "failed_rooms") == 2
    assert world.value("s3", "wait_max") == 32.0
    assert world.value("s3", "waited_30s_share") == 0.5
    assert world.value("s3", "first_error_fraction") == 0.32
    assert world.value("s3", "failure_rate") == 3.5 / 4


def test_s3_pauses_per_d(world: World) -> None:
    world.run("E1", requests=[{}], pauses=[{"decode_worker": "decode-4", "sleep_ms": 1500.0}, {"decode_worker": "decode-4", "sleep_ms": 500.0}])
    assert world.figures("s3", "pauses", "pause_s") == [
        {"metric": "pause_s", "experiment": "E1", "replicate": 1, "scope": "decode-4", "value": 2.0},
        {"metric": "pauses", "experiment": "E1", "replicate": 1, "scope": "decode-4", "value": 2.0},
    ]


def test_s4_step_time_is_the_batch_over_the_throughput(world: World) -> None:
    world.run(requests=[{}], samples=[{"worker": "decode-0", "running": 4, "throughput": 400.0}, {"worker": "decode-0", "running": 0, "throughput": 0.0}],
              admissions=[{"decode_worker": "decode-0", "latency_s": 0.02}, {"decode_worker": "decode-0", "latency_s": 0.04}])  # fmt: skip
    assert world.value("s4", "step_time_p50") == 10.0
    assert world.value("s4", "admission_latency_p50", 1, "decode-0") == pytest.approx(0.03)


def test_s5_ratio_of_failure_rates_per_attempt_with_a_half_added(world: World) -> None:
    on_1 = {"prefill_worker": "prefill-1"}
    world.run(requests=[room(1, **FAILED), room(2, **REJECTED), room(3, **on_1), room(4, **on_1), {"turn": 1, "path": "direct"}])
    assert world.value("s5", "requests", 1, "prefill-0") == 3  # the direct turn had a P chosen as well
    assert world.value("s5", "rejections", 1, "prefill-0") == 1
    assert world.value("s5", "failed_rooms", 1, "prefill-0>decode-0") == 2
    assert world.value("s5", "failure_ratio") == pytest.approx((2.5 / 2) / (0.5 / 2))


def test_s5_without_failures_says_nothing(world: World) -> None:
    world.run(requests=[room(1), room(2, prefill_worker="prefill-1")])
    assert world.value("s5", "failure_ratio") is None


def test_s7_replay_gap_leaves_out_queueing_and_is_compared_with_the_same_turns(world: World) -> None:
    world.turns([{"session": "a", "turn": 0}, {"session": "a", "turn": 1, "gap_s": 20.0}, {"session": "b", "turn": 1, "gap_s": 500.0}])
    world.run(requests=[{"turn": 0, "finished_t": 5.0}, {"turn": 1, "scheduled_t": 7.0, "dispatched_t": 11.0, "finished_t": 12.0}])
    assert world.value("s7", "gap_p50", 1, "replay") == 2.0
    assert world.value("s7", "gap_max", 1, "trace") == 20.0
    assert world.value("s7", "gap_distortion") == pytest.approx(0.0)


def test_s8_a_success_after_the_latch_is_one_whose_first_token_came_later(world: World) -> None:
    before, after = {"first_token_t": 31.0, "finished_t": 40.0}, {"dispatched_t": 31.0, "first_token_t": 33.0, "finished_t": 34.0}
    world.run(requests=[room(1, **FAILED), room(2, **REJECTED), room(3, **before), room(4, **after), room(5, **after, prefill_worker="prefill-1")])
    assert world.value("s8", "successes_after_latch", 1, "prefill-0>decode-0") == 1
    assert world.value("s8", "successes_after_latch", 1, "prefill-1>decode-0") == 0
    assert world.value("s8", "successes_after_latch", None) == 1
    assert world.value("s8", "rejection_share") == 0.5


def test_s8_a_link_that_the_probe_cleared_may_succeed(world: World) -> None:
    after = {"dispatched_t": 50.0, "first_token_t": 53.0, "finished_t": 54.0}
    events = [{"worker": "prefill-0", "kind": "link_latched", "peer": "10.0.0.1:15100", "t": 31.9}, {"worker": "prefill-0", "kind": "peer_recovered", "peer": "10.0.0.1:15100", "t": 45.0}]
    world.run(requests=[room(1, **FAILED), room(2, **after)], events=events)
    assert world.value("s8", "successes_after_latch", None) == 0


def test_the_ps_log_tells_a_rejection_that_the_client_took_for_a_failure(world: World) -> None:
    world.run(requests=[room(1, **FAILED), room(2, **FAILED)], transfers=[{"room": 2, "outcome": "rejection"}])
    assert world.value("s8", "real_failures", 1, "prefill-0>decode-0") == 1
    assert world.value("s8", "rejections", 1, "prefill-0>decode-0") == 1


def test_s9_same_shard_over_other_shard_during_a_stall(world: World) -> None:
    def beside(number: int, d: int, delay: float) -> dict[str, object]:
        return room(number, decode_worker=f"decode-{d}", dispatched_t=1.0, first_token_t=1.0 + delay, finished_t=40.0)

    shards = [{"room": n, "outcome": "real_failure" if n == 1 else "ok", "shard": s} for n, s in ((1, 0), (2, 0), (3, 1), (4, 0))]
    late = room(4, decode_worker="decode-4", dispatched_t=35.0, first_token_t=99.0, finished_t=99.0)  # after the stall
    world.run(requests=[room(1, **FAILED), beside(2, 4, 6.0), beside(3, 1, 2.0), late], transfers=shards)
    assert world.value("s9", "shard_delay_ratio") == 3.0


def dead_p(world: World, experiment: str, *, hangs: bool) -> None:
    """P dies at 15 s; D is asked five times afterwards, and its last line says when it stopped."""
    gone = {"turn": 1, "path": "fallback", "status": "error", "error_kind": "connection", "finished_t": 15.0}
    slow = {"status": "error", "error_kind": "client_timeout", "finished_t": 40.0} if hangs else {"finished_t": 31.0}
    direct = [{"turn": 2, "path": "direct", "prefill_worker": None, "dispatched_t": 30.0, **slow}, {"turn": 2, "path": "direct", "prefill_worker": None, "dispatched_t": 16.0}]
    calls = [{"decode_worker": "decode-0", "t": 40.0 + k, "latency_s": 10.0 if hangs and k else 0.01 if k else 20.0} for k in range(4)]  # the first was asked too early to count
    world.run(experiment, requests=[{}, gone, {**gone, "finished_t": 20.0}, *direct], admissions=[c for c in calls if hangs or c["t"] > 40],
              samples=[{"worker": "decode-0", "t": 17.0 if hangs else 99.0}], events=[{"worker": "decode-0", "kind": "waiting_timeout", "t": 5.0}])  # fmt: skip


def test_s10_a_d_that_answers_nothing_after_its_ps_death_is_wedged(world: World) -> None:
    dead_p(world, "dead-p", hangs=True)
    dead_p(world, "dead-p-nixl", hangs=False)
    link = "prefill-0>decode-0"
    assert [world.value("s10", m, 1, link, "dead-p") for m in ("hung", "answered", "silence_s", "waiting_timeouts")] == [4, 0, 83.0, 0]
    assert [world.value("s10", m, 1, link, "dead-p-nixl") for m in ("hung", "answered", "silence_s")] == [0, 4, 1.0]
    assert world.value("s10", "wedged_share", experiment="dead-p") == 1
    assert world.value("s10", "wedged_share", experiment="dead-p-nixl") == 0


def test_s10_says_nothing_of_a_p_that_came_back_or_a_d_that_nobody_asked(world: World) -> None:
    gone = {"turn": 1, "path": "fallback", "status": "error", "error_kind": "connection", "finished_t": 15.0}
    world.run("E0", requests=[gone, {"path": "fallback", "first_token_t": 20.0, "finished_t": 21.0}])
    world.run("E1", requests=[gone])
    assert world.figures("s10", "wedged_share") == []


def test_headline_quantiles_of_response_count_a_failed_turn_as_infinite(world: World) -> None:
    world.run(requests=[{"dispatched_t": 1.0}, {"finished_t": 4.0}, {"status": "error", "error_kind": "aborted"}, {"status": "truncated", "finished_t": None}])
    assert world.value("headline", "response_p50") == 4.0  # 2, 4, inf
    assert world.value("headline", "response_p90") == math.inf
    assert world.value("headline", "response_mean") == 3.0
    assert world.value("headline", "latency_mean") == 2.5
    assert world.value("headline", "errors") == 1


def test_headline_goodput_throughput_and_warm_up(world: World) -> None:
    slow = {"first_token_t": 9.0, "finished_t": 10.0}
    rows = [{"turn": 0}, {"turn": 1}, {"turn": 2, **slow}]
    world.run("E0", requests=rows, duration_s=10.0)
    world.run("E0@warm", requests=rows, duration_s=10.0, config={"settings": {"warmup_turns": 1, "slo_ttft_s": 20.0}})
    assert world.value("headline", "goodput") == 0.2
    assert world.value("headline", "throughput") == 3.3
    assert world.value("headline", "goodput", experiment="E0@warm") == 0.2  # two turns left, both within 20 s
    assert world.value("headline", "throughput", experiment="E0@warm") == 2.2


def test_every_claim_of_the_configuration_has_its_sql_and_every_metric_its_place_in_the_docs() -> None:
    page = (ROOT / "docs/claims.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", page.split("## The names of the evidence")[1], re.MULTILINE))
    claims = load(ROOT / "config").claims
    for name in [*(c.id for c in claims if not c.withdrawn), "errata"]:
        sql = question(name)
        metrics = set(re.findall(r"'(\w+)' AS metric", sql))
        for columns in re.findall(r"UNPIVOT \w+ ON ([\w,\s]+?)\s+INTO NAME metric", sql):
            metrics |= {c.strip() for c in columns.split(",")}
        metrics |= {e.name for c in claims if c.id == name for e in c.effects}
        assert metrics
        families = {p + q for p in ("ttft_", "response_") for q in ("mean", "p50", "p90", "p99")} if name == "headline" else set()
        assert {m for m in metrics if f"`{m}`" not in rows[name]} - families == set(), name


def test_headline_quantiles_are_linear_between_ranks_and_of_answered_requests_only(world: World) -> None:
    world.run(requests=[*({"first_token_t": t / 2, "finished_t": t} for t in (1.0, 2.0, 4.0)), {"status": "error", "finished_t": 90.0}])
    assert world.value("headline", "latency_p90") == pytest.approx(3.6)
    assert world.value("headline", "ttft_p90") == pytest.approx(1.8)
    assert world.value("headline", "latency_p99") == pytest.approx(3.96)
