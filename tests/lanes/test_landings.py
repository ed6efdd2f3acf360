"""Landings never outgrow their budget, and are used again."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lanes.arena import HostLandings, Memory, size_class


@given(st.integers(0, 1 << 40))
def test_for_any_length_its_size_class_holds_it_with_an_eighth_to_spare_at_most(length: int) -> None:
    capacity = size_class(length)
    assert capacity >= length
    assert capacity <= max(length * 9 // 8 + 4096, 64 << 10)
    assert size_class(capacity) == capacity


def test_like_sizes_share_memory() -> None:
    landings = HostLandings(10 << 20)
    first = landings.reserve(3_000_000)
    assert first is not None
    landings.release(first)
    assert landings.reserve(2_950_000) is first
    assert landings.used == 3_000_000


def test_what_is_free_is_given_up_for_what_is_asked_for() -> None:
    landings = HostLandings(1 << 20)
    small = [landings.reserve(100_000) for _ in range(10)]
    assert None not in small
    assert landings.reserve(100_000) is None
    for memory in small:
        assert memory is not None
        landings.release(memory)
    assert landings.reserve(1 << 20) is not None
    assert landings.used == 1 << 20


def test_small_items_do_not_sit_in_the_memory_of_big_ones() -> None:
    landings = HostLandings(20 << 20)
    big = landings.reserve(8 << 20)
    assert big is not None
    landings.release(big)
    small = landings.reserve(1000)
    assert small is not None
    assert small.capacity < 1 << 20
    assert landings.reserve(8 << 20) is big


def test_memory_of_unknown_length_counts_as_far_as_it_has_grown_and_is_used_again() -> None:
    landings = HostLandings(1 << 20)
    memory = landings.open_ended()
    assert landings.used == 0
    assert landings.grow(memory, 600_000)
    other = landings.reserve(400_000)
    assert other is not None
    assert not landings.grow(memory, 700_000)
    assert not landings.grow(memory, (1 << 20) + 1)
    assert landings.used == 1_000_000
    landings.release(memory)
    assert landings.open_ended() is memory


def test_a_landing_that_is_still_held_is_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    landings = HostLandings(1 << 20)
    memory = landings.reserve(1000)
    assert memory is not None
    held = memory.view(1000)
    held[:4] = b"mine"
    with caplog.at_level(logging.WARNING):
        landings.release(memory)
    assert "a blob of 1000 bytes is still referred to" in caplog.text
    assert landings.used == 0
    again = landings.reserve(1000)
    assert again is not None
    assert again is not memory
    again.view(4)[:] = b"them"
    assert bytes(held[:4]) == b"mine"


def test_a_landing_that_only_a_cycle_holds_is_used_again(caplog: pytest.LogCaptureFixture) -> None:
    landings = HostLandings(1 << 20)
    memory = landings.reserve(1000)
    assert memory is not None
    cycle: list[object] = [memory.view(10)]
    cycle.append(cycle)
    del cycle
    landings.release(memory)
    assert landings.reserve(1000) is memory
    assert caplog.text == ""


def test_new_memory_is_zero_and_writable_over_its_whole_capacity() -> None:
    memory = Memory(3 << 20)
    view = memory.view(memory.capacity)
    assert view.nbytes == 3 << 20
    assert view[-1] == 0
    view[-1] = 7
    assert memory.view(memory.capacity)[-1] == 7


BUDGET = 1 << 20
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, BUDGET + 1)),
        st.tuples(st.just("open"), st.just(0)),
        st.tuples(st.just("grow"), st.integers(0, BUDGET + 1)),
        st.tuples(st.just("release"), st.integers(0, 100)),
        st.tuples(st.just("hold"), st.integers(0, 100)),
    ),
    max_size=40,
)


@given(ACTIONS)
@settings(deadline=None)
def test_for_any_sequence_landings_stay_within_their_budget(actions: list[tuple[str, int]]) -> None:
    landings = HostLandings(BUDGET)
    taken: list[tuple[Memory, int]] = []  # with the length it was given for
    held: list[memoryview] = []
    for action, number in actions:
        if action == "reserve":
            memory = landings.reserve(number)
            alone = not taken
            assert memory is not None or not alone or number > BUDGET, "there was room"
            if memory is not None:
                taken.append((memory, number))
        elif action == "open":
            taken.append((landings.open_ended(), 0))
        elif taken:
            memory, length = taken.pop(number % len(taken))
            if action == "grow":
                taken.append((memory, max(length, number) if landings.grow(memory, number) else length))
            else:
                if action == "hold":
                    held.append(memory.view(1))
                landings.release(memory)
        assert sum(length for _, length in taken) <= landings.used <= BUDGET
        assert len({id(memory) for memory, _ in taken}) == len(taken)
