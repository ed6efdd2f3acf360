"""How a lane stops, reports and shows itself."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from lanes.lane_setting import LaneSetting
from lanes.scripted import (
    WINDOW,
    Hashing,
    Hold,
    RecordingFeed,
    closing,
    content,
    run_lane,
    until,
)

from app.errors import ItemError, Kind
from app.items import Item


class OfEnds(LaneSetting):
    # Stopping:

    async def test_stopped_it_finishes_the_item_on_the_device_and_drops_the_others(self) -> None:
        hold, gate = Hold(), asyncio.Event()

        def slow(*_: Any) -> str:
            hold.wait()
            return "finished"

        items = [
            self.source.add("first", content(3 * WINDOW)),
            self.source.add("whole", content(WINDOW), gates={0: gate}),
            self.source.add("half", content(3 * WINDOW), gates={0: gate, WINDOW: asyncio.Event()}),
        ]
        feed = RecordingFeed(items, endless=True)
        lane, _ = self.lane([], slow, feed=feed)
        async with closing(lane), asyncio.TaskGroup() as group:
            with hold:
                group.create_task(lane.run())
                await hold.reached()
                gate.set()
                await until(lambda: lane.snapshot().received_bytes == 5 * WINDOW)
                assert lane.snapshot().doing == "processing"
                assert lane.snapshot().item == "first"
                lane.stop()
                lane.stop()
        assert feed.results() == {"first": "finished"}
        assert lane.snapshot().doing == "ended"

    @pytest.mark.parametrize("whole", [True, False])
    async def test_stopped_it_finishes_a_stream_that_has_begun_where_it_is_whole(self, whole: bool) -> None:
        hold = Hold()

        class Slow(Hashing):
            def begin(self, item: Item) -> None:
                super().begin(item)
                hold.wait()

        received = (30 if whole else 20) * WINDOW
        item = self.source.add("a", content(30 * WINDOW), gates={} if whole else {received: asyncio.Event()})
        feed = RecordingFeed([item], endless=True)
        lane, _ = self.lane([], Slow(), streams=True, feed=feed)
        async with closing(lane), asyncio.TaskGroup() as group:
            with hold:
                group.create_task(lane.run())
                await hold.reached()
                await until(lambda: lane.snapshot().item_received_bytes == received)
                await until(lambda: not whole or not lane.snapshot().connections_busy)
                await until(lane._consumer.queue.empty)
                lane.stop()
        assert feed.results() == (self.digests([item]) if whole else {})

    async def test_stopped_before_it_started_it_ends_at_once(self) -> None:
        lane, feed = self.lane([self.source.add("a", content(100))])
        lane.stop()
        await run_lane(lane)
        assert feed.outcomes == []
        assert feed.claimed == 0

    # Reporting:

    async def test_outcomes_that_wait_to_be_durable_hold_back_the_claims(self) -> None:
        items = [self.source.add(f"{index}", b"x") for index in range(5000)]
        lane, feed = self.lane(items)
        feed.may_report.clear()
        async with closing(lane), asyncio.TaskGroup() as group:
            group.create_task(lane.run())
            await until(lambda: lane._intake.held_back and not lane._consumer.calling)
            assert feed.claimed < 2500
            assert lane.snapshot().done == 0
            feed.may_report.set()
        assert len(feed.by_id()) == 5000
        assert lane.snapshot().done == 5000

    async def test_a_snapshot_counts_what_was_received_and_how_it_ended(self) -> None:
        items = [self.source.add(f"{index}", content(1000, index)) for index in range(4)]
        items.append(self.source.add("bad", b"", refusals=deque([ItemError(Kind.NOT_FOUND, "gone")])))
        lane, _ = self.lane(items)
        assert lane.snapshot().doing == "starting"
        await run_lane(lane)
        snapshot = lane.snapshot()
        assert (snapshot.done, snapshot.failed, snapshot.received_bytes) == (4, 1, 4000)
        assert (snapshot.open_items, snapshot.connections_busy, snapshot.item) == (0, 0, None)
        assert snapshot.doing == "ended"
