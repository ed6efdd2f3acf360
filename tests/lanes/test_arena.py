"""Slabs are granted in item order, and never more than there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.lanes.arena import Slab, Slabs

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
