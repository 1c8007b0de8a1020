from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from apd_replay.sim.prefixes import PrefixCache, SharedHeads

B = 512


@dataclass
class P:
    session: str
    input_tokens: int
    turn: int = 0
    hash_ids: tuple[int, ...] | None = None


def heads(*prompts: P) -> SharedHeads:
    return SharedHeads.of([(p.session, p.hash_ids) for p in prompts], B)


def test_a_repeated_prompt_hits_fully_but_for_the_token_that_must_be_computed() -> None:
    a, b = P("a", 4 * B, hash_ids=(1, 2, 3, 4)), P("b", 4 * B, hash_ids=(1, 2, 3, 4))
    cache = PrefixCache(heads(a, b))
    assert cache.match(b) == (0, 0)
    cache.insert(a, a.input_tokens)
    assert cache.match(b)[0] == 4 * B - 1
    assert cache.size == 4 * B


def test_a_shared_head_is_kept_once_and_sessions_own_the_rest() -> None:
    a, b = P("a", 1400, hash_ids=(1, 2, 3)), P("b", 1500, hash_ids=(1, 2, 9))
    cache = PrefixCache(heads(a, b))
    cache.insert(a, 1400)
    assert cache.match(b) == (2 * B, 2 * B)
    assert cache.insert(b, 1500) == 1500 - 2 * B
    assert cache.match(P("a", 3000, 1, (1, 2, 3, 4, 5))) == (1400, 2 * B)


def test_a_session_finds_its_history_and_only_what_its_prompt_still_repeats() -> None:
    cache = PrefixCache(SharedHeads())
    cache.insert(P("a", 900), 900)
    assert cache.match(P("a", 2000, 1)) == (900, 0)
    cache.limit("a", 300)  # the session dropped most of its history
    assert (cache.match(P("a", 2000, 2)), cache.size) == ((300, 0), 300)


def test_the_least_recently_used_goes_first_and_a_sessions_end_before_its_head() -> None:
    cache = PrefixCache(SharedHeads())
    for name in "abc":
        cache.insert(P(name, 1000), 1000)
    cache.insert(P("a", 1000), 1000)  # used again
    assert cache.evict(1200) == 1200
    assert [cache.match(P(n, 5000, 1))[0] for n in "abc"] == [1000, 0, 800]


def test_what_is_taken_counts_no_longer_and_cannot_be_evicted() -> None:
    cache = PrefixCache(SharedHeads())
    cache.insert(P("a", 1000), 1000)
    assert cache.take("a") == 1000
    assert (cache.size, cache.evict(10)) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("iltel"), st.integers(0, 3), st.integers(1, 5000)), max_size=60))
def test_the_size_is_always_the_sum_of_what_is_kept(steps: list[tuple[str, int, int]]) -> None:
    prompts = [P(f"s{k}", 6000, hash_ids=(1, 2, 10 + k) if k % 2 else (1, 20 + k)) for k in range(4)]
    cache = PrefixCache(heads(*prompts))
    for step, k, tokens in steps:
        if step == "i":
            cache.insert(prompts[k], tokens)
        elif step == "l":
            cache.limit(prompts[k].session, tokens)
        elif step == "t":
            cache.take(prompts[k].session)
        else:
            before = cache.size
            assert cache.evict(tokens) == before - cache.size >= min(tokens, before)
        assert cache.size == sum(cache._entries.values()) >= 0
