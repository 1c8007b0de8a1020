"""Transfer queues, Mooncake's limit and the latch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_world import experiment

from apd_replay.sim.cost import Cost
from apd_replay.sim.link import Link, Outage, Peer, Piece

COST = Cost(experiment().hardware, "mooncake")
TOKENS = 8192
QUICK = COST.transfer_s(TOKENS, 0)


def link(*outages: Outage, latch: bool = True, probe: bool = False, limit: bool = True, head_of_line: bool = True, decode: int = 6) -> Link:
    return Link(COST, [Peer.of(d) for d in range(decode)], outages, latch=latch, probe=probe, limit=limit, head_of_line=head_of_line)


def test_pieces_of_one_queue_follow_each_other_and_other_queues_do_not_wait() -> None:
    one = link()
    assert one.send(0, TOKENS, 1.0) == Piece(1.0 + QUICK, None)
    assert one.send(4, TOKENS, 1.0).end == pytest.approx(1.0 + 2 * QUICK)  # D 0 and D 4 share a queue of four
    assert one.send(1, TOKENS, 1.0).end == pytest.approx(1.0 + QUICK)


def test_without_head_of_line_every_d_has_its_own_queue() -> None:
    one = link(head_of_line=False)
    one.send(0, TOKENS, 1.0)
    assert one.send(4, TOKENS, 1.0).end == pytest.approx(1.0 + QUICK)


def test_a_stalled_d_holds_up_its_shard_only() -> None:
    one = link(Outage(0, 0.0, 20.0))
    assert one.send(0, TOKENS, 1.0).end == pytest.approx(20.0 + QUICK)
    assert one.send(4, TOKENS, 1.0).end == pytest.approx(20.0 + 2 * QUICK)
    assert one.send(5, TOKENS, 1.0).end == pytest.approx(1.0 + QUICK)


def test_a_send_fails_after_30_s_and_a_nanosecond_a_byte() -> None:
    failed = link(Outage(0, 0.0, 100.0)).send(0, TOKENS, 1.0)
    assert failed == Piece(pytest.approx(31.0 + TOKENS * 98304 * 1e-9), "kv_transfer", True)


def test_without_the_limit_it_waits() -> None:
    assert link(Outage(0, 0.0, 100.0), limit=False).send(0, TOKENS, 1.0) == Piece(pytest.approx(100.0 + QUICK), None)


@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 5), st.floats(0, 30)), max_size=40))
def test_the_latch_fails_every_later_send_on_its_link_at_once_and_no_other(bad: int, sends: list[tuple[int, float]]) -> None:
    one, now = link(Outage(bad, 0.0, 50.0)), 60.0
    first = one.send(bad, TOKENS, 0.0)
    assert first.latched
    for decode, wait in sends:
        now += wait
        piece = one.send(decode, TOKENS, now)
        assert piece.error == ("peer_dead" if decode == bad else None)
        if decode == bad:
            assert piece.end == max(now, one._free_at[Peer.of(bad).queue])
    assert one.recovered == []


def test_what_waits_behind_the_failing_piece_is_rejected_when_its_turn_comes() -> None:
    one = link(Outage(0, 0.0, 100.0))
    first = one.send(0, TOKENS, 0.0)
    assert one.send(0, TOKENS, 1.0) == Piece(first.end, "peer_dead")
    assert one.send(4, TOKENS, 1.0) == Piece(pytest.approx(first.end + QUICK), None)


def test_without_the_latch_a_link_recovers_by_itself() -> None:
    one = link(Outage(0, 0.0, 40.0), latch=False)
    assert one.send(0, TOKENS, 0.0) == Piece(pytest.approx(30.0, abs=1.0), "kv_transfer", False)
    assert one.send(0, TOKENS, 50.0).error is None


def test_the_probe_clears_the_latch_once_the_d_answers() -> None:
    one = link(Outage(0, 0.0, 70.0), probe=True)
    latched_at = one.send(0, TOKENS, 0.0).end  # 30.8 s; the probe at 60.8 s finds it silent, the one at 90.8 s does not
    assert one.send(0, TOKENS, 80.0).error == "peer_dead"
    assert one.send(0, TOKENS, 91.0).error is None
    assert one.recovered == [(pytest.approx(latched_at + 60.0), 0)]
