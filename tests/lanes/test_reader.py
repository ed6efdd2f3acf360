"""Readers of a real intake, and a source that does as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes.answering import DEADLINE_S, URL, Lane, Step, again
from lanes.scripted import WINDOW, content, until

from app.errors import ItemError, Kind
from app.items import Item, Part
from app.lanes.opened import Window
from app.lanes.reader import read_parts
from app.sources import StartOver, Version
from app.sources.retry import LONGEST_WAIT_S, PROGRESS_BYTES


def sizes() -> Iterator[object]:
    for size in (0, 1, WINDOW, 4 * WINDOW, 9 * WINDOW + 1):
        for known in (True, False):
            yield pytest.param(size, known, id=f"{size}-{'known' if known else 'unknown'}")


@pytest.mark.parametrize(("size", "known"), list(sizes()))
@pytest.mark.parametrize("readers", [1, 3])
async def test_an_item_becomes_whole(size, known, readers):
    lane = Lane(data=content(size))
    lane.open(size if known else None)
    await lane.run(readers)
    assert lane.received() == content(size)
    assert lane.opened.tries == 1


@given(st.integers(0, 9 * WINDOW), st.lists(st.integers(0, 5 * WINDOW), max_size=12), st.integers(1, 3), st.booleans())
def test_for_any_breaks_the_item_becomes_whole_when_nobody_is_to_blame(size, breaks, readers, known):
    steps = [Step(sends=sends, ends=again(charged=False)) for sends in breaks]
    lane = Lane(*steps, data=content(size))
    lane.open(size if known else None)
    asyncio.run(lane.run(readers))
    assert lane.received() == content(size)
    assert lane.opened.tries == 1


async def test_a_retry_continues_at_the_first_missing_byte_and_is_pinned_to_the_version():
    data = content(4 * WINDOW)
    lane = Lane(Step(sends=1500, ends=again()), Step(sends=100, ends=again()), data=data)
    lane.open(len(data))
    await lane.run()
    assert lane.received() == data
    assert lane.script.asked == [Part(0, 4096), Part(1500, 4096), Part(1600, 4096)]
    assert lane.script.known == [None, *2 * [Version(4096, '"one"')]]
    assert lane.opened.tries == 3


async def test_the_rest_of_a_short_answer_is_asked_for_and_no_try_is_counted():
    data = content(3 * WINDOW)
    lane = Lane(Step(most=1000), Step(most=1), data=data, attempts=1)
    lane.open()
    await lane.run()
    assert lane.received() == data
    assert lane.script.asked[1:] == [Part(1000, 3072), Part(1001, 3072)]
    assert lane.opened.tries == 1


async def test_a_part_that_does_not_get_on_fails_its_item_with_the_last_error():
    lane = Lane(*[Step(sends=0, ends=again(Kind.TIMEOUT)) for _ in range(9)], data=content(WINDOW), attempts=3)
    lane.open()
    await lane.run()
    assert [(failure.kind, failure.message) for failure in lane.failed] == [(Kind.TIMEOUT, "broken")]
    assert len(lane.script.asked) == 3


async def test_a_server_that_drops_every_connection_after_a_mebibyte_still_gets_us_there():
    data = content(8 * PROGRESS_BYTES)
    steps = [Step(sends=PROGRESS_BYTES, ends=again()) for _ in range(7)]
    lane = Lane(*steps, data=data, attempts=2, part_bytes=len(data), window_bytes=1 << 16)
    lane.open()
    await lane.run()
    assert lane.received() == data
    assert lane.opened.tries == 8


async def test_a_drop_for_want_of_memory_is_never_counted():
    lane = Lane(*[Step(sends=10, ends=again(charged=False)) for _ in range(50)], data=content(WINDOW), attempts=1)
    lane.open()
    await lane.run()
    assert lane.received() == content(WINDOW)
    assert lane.opened.tries == 1


async def test_after_a_drop_for_want_of_memory_the_server_is_asked_only_when_there_is_some():
    lane = Lane(Step(sends=WINDOW, ends=again(charged=False)), data=content(2 * WINDOW), streams=True, budget=WINDOW)
    opened = lane.open(2 * WINDOW)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(read_parts(lane.intake, 3, lambda: 0.0))
        await until(lambda: bool(lane.windows))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(lane.script.asked) == 1
        opened.consumed_bytes += WINDOW
        lane.intake.slabs.release(lane.windows[0].slab)
        await lane.ended.wait()
        lane.intake.close()
    assert lane.script.asked == [Part(0, 2 * WINDOW), Part(WINDOW, 2 * WINDOW)]


async def test_what_breaks_after_the_last_byte_breaks_nothing():
    lane = Lane(Step(ends=again()), data=content(WINDOW), attempts=1)
    lane.open()
    await lane.run()
    assert lane.received() == content(WINDOW)
    assert len(lane.script.asked) == 1


async def test_a_body_of_unknown_length_that_ends_too_early_is_tried_again_and_given_up():
    steps = [Step(ranges=False, announced=False, sends=0) for _ in range(9)]
    lane = Lane(*steps, data=content(WINDOW), attempts=3)
    lane.open(WINDOW)
    await lane.run()
    assert [failure.kind for failure in lane.failed] == [Kind.TRUNCATED]
    assert len(lane.script.asked) == 3


async def test_a_body_of_unknown_length_that_breaks_off_is_fetched_from_its_first_byte():
    lane = Lane(Step(ranges=False, announced=False, sends=100, ends=again()), data=content(WINDOW))
    lane.open()
    await lane.run()
    assert lane.received() == content(WINDOW)
    assert lane.opened.starts == 2


async def test_an_items_error_fails_it_at_once():
    lane = Lane(Step(refused=ItemError(Kind.NOT_FOUND, "gone")), data=content(WINDOW))
    lane.open()
    await lane.run(3)
    assert [(failure.kind, failure.message) for failure in lane.failed] == [(Kind.NOT_FOUND, "gone")]
    assert len(lane.script.asked) == 1


async def test_a_change_starts_the_item_over_and_nothing_of_the_old_version_stays():
    lane = Lane(Step(sends=WINDOW, ends=StartOver("changed")), data=content(3 * WINDOW))
    lane.open()
    await lane.run()
    assert lane.received() == content(3 * WINDOW)
    assert (lane.opened.starts, lane.script.asked) == (2, [Part(0, 4096), Part(0, 4096)])
    assert lane.script.known == [None, None]


async def test_an_item_that_starts_over_too_often_fails_as_the_last_reason_says():
    lane = Lane(*[Step(refused=StartOver("changed")) for _ in range(9)], data=content(WINDOW), attempts=3)
    lane.open()
    await lane.run()
    assert [failure.kind for failure in lane.failed] == [Kind.CHANGED]
    assert len(lane.script.asked) == 3


async def test_a_server_of_whole_bodies_is_asked_without_ranges_the_next_time():
    lane = Lane(Step(refused=StartOver("whole", whole=True)), Step(ranges=False), data=content(9 * WINDOW))
    lane.open()
    await lane.run(3)
    assert lane.received() == content(9 * WINDOW)
    assert lane.script.asked == [Part(0, 4096), None]


async def test_when_its_item_fails_a_reader_in_mid_transfer_lets_go_and_goes_on():
    gate = asyncio.Event()  # never opens
    steps = Step(), Step(gate=gate), Step(refused=ItemError(Kind.FORBIDDEN, "no"))
    lane = Lane(*steps, data=content(9 * WINDOW))
    lane.open()
    after = lane.intake.open(Item("after", f"{URL}2"))
    whole = asyncio.Event()
    arrived = lane._arrived

    def watch(window: Window) -> None:
        arrived(window)
        if after.landed_bytes == 9 * WINDOW:
            whole.set()

    lane.intake._arrived = watch
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(read_parts(lane.intake, 3, lambda: 0.0))
        await whole.wait()
        lane.intake.close()
    assert [failure.kind for failure in lane.failed] == [Kind.FORBIDDEN]
    assert not lane.opened.works


async def test_a_cancelled_reader_ends_and_lets_go_of_its_part():
    lane = Lane(Step(gate=asyncio.Event()), data=content(WINDOW))
    opened = lane.open()
    task = asyncio.create_task(read_parts(lane.intake, 3, lambda: 0.0))
    async with asyncio.timeout(DEADLINE_S):
        await lane.script.receiving.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not opened.works


async def test_a_reader_that_is_interrupted_and_cancelled_at_once_ends():
    lane = Lane(Step(gate=asyncio.Event()), data=content(WINDOW))
    opened = lane.open()
    task = asyncio.create_task(read_parts(lane.intake, 3, lambda: 0.0))
    async with asyncio.timeout(DEADLINE_S):
        await lane.script.receiving.wait()
        lane.intake.end(opened)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not opened.works


async def test_an_answer_for_which_there_is_no_room_yet_is_abandoned_and_asked_for_later():
    data = content(2 * WINDOW)
    lane = Lane(data=data, budget=3 * WINDOW)
    first = lane.intake.open(Item("first", f"{URL}1"))
    lane.open()
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(read_parts(lane.intake, 3, lambda: 0.0))
        await lane.ended.wait()
        await until(lambda: lane.script.abandoned == 1)
        lane.ended.clear()
        lane.intake.end(first)
        await lane.ended.wait()
        lane.intake.close()
    assert lane.received() == data


async def test_the_wait_before_another_try_is_what_the_server_asked_for():
    waits: list[float] = []

    class Loop(asyncio.SelectorEventLoop):
        """Its clock jumps to whatever is waited for next."""

        def call_at(self, when: float, callback: Callable[..., object], *args: object, **more: object):
            waits.append(when - self.time())
            return super().call_at(self.time(), callback, *args, **more)

    async def scenario() -> None:
        lane = Lane(Step(refused=again(after_s=7.0)), Step(refused=again(after_s=1e9)), data=content(10))
        lane.open()
        task = asyncio.create_task(read_parts(lane.intake, 3, lambda: 0.0))
        await lane.ended.wait()
        lane.intake.close()
        await task

    def run() -> Awaitable[None]:
        with asyncio.Runner(loop_factory=Loop) as runner:
            return runner.run(scenario())

    await asyncio.to_thread(run)
    assert [round(wait, 2) for wait in waits] == [7.0, LONGEST_WAIT_S]
