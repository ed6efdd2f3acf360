"""Slabs are granted in item order and never more than there are; landings never outgrow their budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.lanes.arena import HostLandings, Memory, Slab, Slabs, size_class

Rank = tuple[int, int]


def always() -> bool:
    return True


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def waiting(slabs: Slabs, rank: Rank, allowed: Callable[[], bool] = always) -> asyncio.Task[Slab]:
    return asyncio.ensure_future(slabs.acquire(rank, allowed))


async def test_there_are_never_more_slabs_than_the_count() -> None:
    slabs = Slabs(2, 1024)
    first, second = slabs.acquire_nowait((1, 0), always), slabs.acquire_nowait((1, 1), always)
    assert first is not None
    assert second is not None
    assert slabs.acquire_nowait((0, 0), always) is None
    assert slabs.in_use == 2
    slabs.release(first)
    assert slabs.in_use == 1


async def test_the_slab_touched_last_is_handed_out_first() -> None:
    slabs = Slabs(3, 1024)
    taken = [slabs.acquire_nowait((1, window), always) for window in range(3)]
    for slab in taken:
        assert slab is not None
        slabs.release(slab)
    assert slabs.acquire_nowait((1, 3), always) is taken[-1]


async def test_waiters_are_served_oldest_item_first_and_then_lowest_window_first() -> None:
    slabs = Slabs(1, 1024)
    slab = slabs.acquire_nowait((0, 0), always)
    order: list[Rank] = []

    async def take(rank: Rank) -> None:
        granted = await slabs.acquire(rank, always)
        order.append(rank)
        slabs.release(granted)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for rank in [(2, 0), (1, 7), (3, 0), (1, 2)]:
            group.create_task(take(rank))
        await settle()
        assert slab is not None
        slabs.release(slab)
    assert order == [(1, 2), (1, 7), (2, 0), (3, 0)]


async def test_a_free_slab_is_kept_for_an_older_waiter_that_may_have_it() -> None:
    slabs = Slabs(1, 1024)
    open_ = False
    older = waiting(slabs, (1, 0), lambda: open_)
    await settle()
    open_ = True
    assert slabs.acquire_nowait((2, 0), always) is None
    slabs.review()
    async with asyncio.timeout(5):
        assert (await older).view.nbytes == 1024


async def test_a_waiter_that_may_not_have_a_slab_holds_up_nobody() -> None:
    slabs = Slabs(1, 1024)
    older = waiting(slabs, (1, 0), lambda: False)
    await settle()
    assert slabs.acquire_nowait((2, 0), always) is not None
    older.cancel()
    await asyncio.wait([older])


async def test_a_slab_is_refused_where_it_is_not_allowed_even_if_one_is_free() -> None:
    slabs = Slabs(1, 1024)
    assert slabs.acquire_nowait((1, 0), lambda: False) is None
    assert slabs.in_use == 0


async def test_a_cancelled_wait_takes_no_slab() -> None:
    slabs = Slabs(1, 1024)
    slab = slabs.acquire_nowait((0, 0), always)
    assert slab is not None
    before, at_grant = waiting(slabs, (1, 0)), waiting(slabs, (2, 0))
    await settle()
    before.cancel()
    await asyncio.wait([before])
    slabs.release(slab)  # grants it to the other one, which is cancelled before it hears of it
    at_grant.cancel()
    await asyncio.wait([at_grant])
    assert at_grant.cancelled()
    assert slabs.in_use == 0


async def test_a_cancelled_waiter_keeps_no_free_slab_from_a_younger_one() -> None:
    slabs = Slabs(1, 1024)
    open_ = False
    older = waiting(slabs, (1, 0), lambda: open_)
    await settle()
    open_ = True
    younger = waiting(slabs, (2, 0))
    await settle()
    older.cancel()
    async with asyncio.timeout(5):
        assert await younger is not None
    assert older.cancelled()


class SlabMachine(RuleBasedStateMachine):
    """Slabs beside a model of them: a set of grants, and a receive window that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.slabs = Slabs(3, 64)
        self.frontier = 0
        self.tasks: dict[Rank, asyncio.Task[Slab]] = {}
        self.held: list[Slab] = []

    def do(self, act: Callable[[], None]) -> None:
        async def body() -> None:
            act()
            await settle()

        self.runner.run(body())
        for rank, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[rank]
                if not task.cancelled():
                    self.held.append(task.result())

    def may(self, rank: Rank) -> bool:
        return rank[1] < self.frontier + 2

    @rule(order=st.integers(0, 3), window=st.integers(0, 8))
    def acquire(self, order: int, window: int) -> None:
        rank = (order, window)
        if rank not in self.tasks:
            self.do(lambda: self.tasks.update({rank: waiting(self.slabs, rank, lambda: self.may(rank))}))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slab = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.do(lambda: self.slabs.release(slab))

    @rule()
    def advance(self) -> None:
        def act() -> None:
            self.frontier += 1
            self.slabs.review()

        self.do(act)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), also_release=st.booleans())
    def cancel(self, data: st.DataObject, also_release: bool) -> None:
        def act() -> None:
            if also_release and self.held:
                self.slabs.release(self.held.pop())
            self.tasks[rank].cancel()

        rank = data.draw(st.sampled_from(sorted(self.tasks)))
        self.do(act)

    @invariant()
    def no_slab_is_lost_or_made(self) -> None:
        assert self.slabs.in_use == len(self.held) <= self.slabs.count
        assert len({id(slab) for slab in self.held}) == len(self.held)

    @invariant()
    def nobody_waits_who_could_be_served(self) -> None:
        if self.slabs.in_use < self.slabs.count:
            assert not [rank for rank in self.tasks if self.may(rank)]

    def teardown(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        self.do(lambda: None)
        self.runner.close()


SlabMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestSlabsForAnySequence = SlabMachine.TestCase


# Landings


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
