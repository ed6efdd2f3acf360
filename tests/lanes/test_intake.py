"""What a lane's receiving half decides of items that land on a GPU: pure, so that it is tested without one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from lanes.scripted import WINDOW, ScriptedSource, plan

from app.errors import ItemError, Kind
from app.items import Failure, Item
from app.lanes.intake import Intake
from app.lanes.opened import OpenItem, State, Window, Work
from app.sources import Answer, Version


class Lane:
    """An intake with nobody around it."""

    def __init__(self, **changed: Any) -> None:
        self.arrived: list[Window] = []
        self.failed: dict[str, Failure] = {}
        source = ScriptedSource()
        self.intake = Intake(plan(**changed), lambda _: source, 3, self.arrived.append, self._fail)

    def _fail(self, opened: OpenItem, failure: Failure) -> None:
        self.failed[opened.item.id] = failure

    def open(self, name: str, size: int | None = None) -> OpenItem:
        return self.intake.open(Item(name, f"test://origin/{name}", size))

    async def take(self) -> Work:
        async with asyncio.timeout(5):
            work = await self.intake.take()
        assert work is not None
        return work

    async def receive_without_length(self, opened: OpenItem, length: int) -> None:
        """The whole body of an item comes in whose length nobody knew."""
        work = await self.take()
        assert work.opened is opened
        sink = self.intake.answered(work, Answer(0, None, Version(None), ranges=False))
        assert sink is not None
        work.sink = sink
        while sink.position < length:
            view = sink.view()
            assert view is not None
            sink.advance(min(len(view), length - sink.position))
        sink.end()
        try:
            self.intake.complete(work)
        finally:
            self.intake.let_go(work)


def on_gpu(budget: int | None = 8 * WINDOW) -> Lane:
    return Lane(lands_here=True, device_bytes=budget)


async def test_before_the_device_is_open_nothing_is_too_large_and_nothing_lands() -> None:
    lane = on_gpu(None)
    small, big = lane.open("small", WINDOW), lane.open("big", 9 * WINDOW)
    assert lane.failed == {}
    assert (small.state, big.state) == (State.WAITING, State.WAITING)
    lane.intake.learn_device_bytes(8 * WINDOW)
    assert small.state is State.RECEIVING
    assert lane.failed["big"].kind is Kind.TOO_LARGE
    assert f"raise --device-buffer (now {8}KiB)" in lane.failed["big"].message


async def test_an_item_asked_for_before_the_device_is_open_waits_for_its_landing() -> None:
    lane = on_gpu(None)
    opened = lane.open("a")
    work = await lane.take()
    assert lane.intake.answered(work, Answer(0, 4 * WINDOW, Version(6 * WINDOW), ranges=True)) is None
    lane.intake.let_go(work)
    assert opened.state is State.WAITING
    lane.intake.learn_device_bytes(8 * WINDOW)
    assert opened.state is State.RECEIVING
    assert opened.landing is not None


async def test_landings_on_a_gpu_stay_within_its_budget() -> None:
    lane = on_gpu()
    items = [lane.open(f"{index}", 3 * WINDOW) for index in range(4)]
    assert [opened.state for opened in items] == [State.RECEIVING, State.RECEIVING, State.WAITING, State.WAITING]
    lane.intake.end(items[1])
    assert [opened.state for opened in items[2:]] == [State.RECEIVING, State.WAITING]


async def test_an_item_that_grew_on_the_host_takes_room_on_the_gpu_before_it_is_processed() -> None:
    lane = on_gpu()
    grown = lane.open("grown")
    await lane.receive_without_length(grown, 5 * WINDOW)
    small = lane.open("small", 2 * WINDOW)
    assert small.state is State.WAITING  # or it might take the room that the older one needs
    assert lane.intake.take_device_room(grown)
    waiting = lane.open("waiting", 2 * WINDOW)
    assert (small.state, waiting.state) == (State.RECEIVING, State.WAITING)
    lane.intake.end(grown)
    assert waiting.state is State.RECEIVING


async def test_an_item_that_grew_on_the_host_waits_for_room_on_the_gpu_and_hears_of_it() -> None:
    lane = on_gpu()
    other = lane.open("other", 4 * WINDOW)
    work = await lane.take()
    grown = lane.open("grown")
    await lane.receive_without_length(grown, 5 * WINDOW)
    heard: list[bool] = []
    lane.intake.freed = lambda: heard.append(lane.intake.take_device_room(grown))
    assert not lane.intake.take_device_room(grown)
    lane.intake.fail_item(other, Failure(Kind.NOT_FOUND, "gone"))
    lane.intake.let_go(work)
    assert heard == [True]


async def test_an_item_that_grew_larger_than_the_gpu_allows_fails() -> None:
    lane = on_gpu(4 * WINDOW)
    grown = lane.open("grown")
    with pytest.raises(ItemError, match=rf"its {5 * WINDOW} bytes do not fit .* raise --device-buffer"):
        await lane.receive_without_length(grown, 5 * WINDOW)


async def test_items_of_unknown_length_grow_one_at_a_time() -> None:
    lane = Lane()
    first, second = lane.open("first"), lane.open("second")
    works = [await lane.take(), await lane.take()]
    no_length = Answer(0, None, Version(None), ranges=False)
    assert lane.intake.answered(works[0], no_length) is not None
    assert lane.intake.answered(works[1], no_length) is None
    assert (first.state, second.state) == (State.RECEIVING, State.WAITING)
    lane.intake.complete(works[0])
    assert second.state is State.RECEIVING


async def test_room_that_an_ended_item_still_occupies_is_waited_for() -> None:
    lane = Lane(budget=8 * WINDOW)
    leaving, growing = lane.open("leaving", 6 * WINDOW), lane.open("growing")
    work = await lane.take()
    assert work.opened is leaving
    asked = await lane.take()
    sink = lane.intake.answered(asked, Answer(0, None, Version(None), ranges=False))
    assert sink is not None
    assert asked.opened is growing
    asked.sink = sink
    leaving.works = {Work(leaving, work.part, _another_task(), 1)}  # a reader that has not let go of it yet
    lane.intake.fail_item(leaving, Failure(Kind.NOT_FOUND, "gone"))
    for _ in range(2):
        view = sink.view()
        assert view is not None
        sink.advance(len(view))
    assert sink.view() is None
    waiting = asyncio.ensure_future(sink.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    [left] = leaving.works
    lane.intake.let_go(left)
    async with asyncio.timeout(5):
        await waiting
    assert sink.view() is not None


def _another_task() -> Any:
    return asyncio.ensure_future(asyncio.sleep(0))


@pytest.mark.parametrize(
    ("sizes", "read_ahead", "wanted"),
    [
        ([], 100, 1),  # of unknown size: one
        ([50], 100, 2),
        ([50], 0, 1),  # one is always read ahead
        ([1000], 100, 1),
        ([50, 50], 200, 3),
        ([50, 500], 200, 0),
        ([1, 1], 10_000, 64),
        ([0, 0], 10_000, 64),
    ],
)
async def test_as_many_items_are_wanted_as_fit_in_what_is_read_ahead(
    sizes: list[int], read_ahead: int, wanted: int, tmp_path: Path
) -> None:
    lane = Lane(read_ahead_bytes=read_ahead)
    for index, size in enumerate(sizes):
        lane.open(f"{tmp_path}{index}", size)
    assert lane.intake.wanted() == wanted


async def test_there_is_room_again_when_the_first_size_is_known() -> None:
    lane = Lane()
    lane.open("a")
    work = await lane.take()
    lane.intake.room.clear()
    lane.intake.answered(work, Answer(0, 10, Version(10), ranges=True))
    assert lane.intake.room.is_set()
