"""What a lane makes of streams, and of processors that fail, hang on or are slow."""

from __future__ import annotations

import asyncio
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
    seen,
    sha256,
    until,
)

from app.errors import Kind, UsageError
from app.items import Item, Status
from app.sources import StartOver


class OfProcessors(LaneSetting):
    # Streams:

    async def test_a_stalled_head_lets_small_streams_behind_it_through(self) -> None:
        gate = asyncio.Event()
        head = self.source.add("head", content(5 * WINDOW), gates={0: gate})
        small = [self.source.add(f"{index}", content(WINDOW, index)) for index in range(3)]
        lane, feed = self.lane([head, *small], streams=True, budget=32 * WINDOW)
        async with closing(lane), asyncio.TaskGroup() as group:
            group.create_task(lane.run())
            while len(feed.outcomes) < 3:
                feed.reported.clear()
                await feed.reported.wait()
            assert sorted(feed.by_id()) == ["0", "1", "2"]
            gate.set()
        assert feed.results() == self.digests([head, *small])

    async def test_a_stream_that_starts_over_while_windows_are_on_the_device_begins_again(self) -> None:
        hold, at = Hold(), 8 * WINDOW

        class Slow(Hashing):
            def update(self, window: Any, offset: int) -> None:
                super().update(window, offset)
                if self.begun == ["a"]:
                    hold.wait()

        processor, gate = Slow(), asyncio.Event()
        item = self.source.add("a", content(20 * WINDOW, 1), strong="one", gates={at: gate}, breaks=[at])
        blob = self.source.blob(item)
        lane, feed = self.lane([item], processor, streams=True)
        async with closing(lane), asyncio.TaskGroup() as group:
            with hold:
                group.create_task(lane.run())
                await hold.reached()
                blob.data, blob.strong = content(12 * WINDOW, 2), "two"
                blob.refusals.append(StartOver("it is another one"))
                gate.set()
                await until(lambda: not blob.refusals)  # the reader that asks next is told
        assert feed.results() == {"a": sha256(content(12 * WINDOW, 2))}
        assert processor.begun == ["a", "a"]

    @pytest.mark.parametrize("windows", [1, 6])
    async def test_a_stream_that_runs_out_of_memory_is_done_once_more(self, windows: int) -> None:
        class Hungry(Hashing):
            def update(self, window: Any, offset: int) -> None:
                if len(self.begun) == 1:
                    raise MemoryError
                super().update(window, offset)

        item = self.source.add("a", content(windows * WINDOW))
        feed = await self.run([item], Hungry(), streams=True)
        assert feed.results() == self.digests([item])
        assert feed.by_id()["a"].attempts == 2

    async def test_a_stream_that_runs_out_of_memory_again_fails(self) -> None:
        class Hungry(Hashing):
            def finish(self, item: Item) -> str:
                if item.id == "a":
                    raise MemoryError
                return super().finish(item)

        items = [self.source.add(name, content(5 * WINDOW)) for name in ("a", "b")]
        feed = await self.run(items, Hungry(), streams=True)
        assert feed.failures()["a"][0] is Kind.OUT_OF_MEMORY
        assert feed.results()["b"] == self.digests(items)["b"]

    # What processors do:

    @pytest.mark.parametrize("where", ["begin", "update", "finish"])
    async def test_a_stream_that_fails_anywhere_costs_only_its_item(self, where: str) -> None:
        class Failing(Hashing):
            def fail(self, there: str) -> None:
                if there == where and self.begun[-1] == "bad":
                    raise ValueError(f"no {where}")

            def begin(self, item: Item) -> None:
                super().begin(item)
                self.fail("begin")

            def update(self, window: Any, offset: int) -> None:
                self.fail("update")
                super().update(window, offset)

            def finish(self, item: Item) -> str:
                self.fail("finish")
                return super().finish(item)

        items = [self.source.add(name, content(20 * WINDOW)) for name in ("a", "bad", "b")]
        feed = await self.run(items, Failing(), streams=True)
        assert feed.failures() == {"bad": (Kind.PROCESSOR, f"ValueError: no {where}")}

    async def test_a_processor_that_fails_costs_only_that_item(self) -> None:
        def fail_odd(blob: Any, item: Item) -> str:
            if int(item.id) % 2:
                raise ValueError(item.id)
            return sha256(seen(blob))

        items = [self.source.add(f"{index}", content(100, index)) for index in range(20)]
        feed = await self.run(items, fail_odd)
        assert {name for name, (kind, _) in feed.failures().items() if kind is Kind.PROCESSOR} == {
            f"{index}" for index in range(1, 20, 2)
        }
        failed = feed.by_id()["7"]
        assert failed.status is Status.FAILED
        assert failed.error is not None
        assert "in fail_odd" in failed.error.traceback

    async def test_a_result_that_json_cannot_hold_fails_its_item(self) -> None:
        items = [self.source.add(name, b"x") for name in ("a", "b")]
        feed = await self.run(items, lambda _, item: object() if item.id == "a" else 1)
        assert feed.failures()["a"][0] is Kind.PROCESSOR
        assert feed.results()["b"] == 1

    async def test_a_processor_that_cannot_be_opened_ends_the_lane(self) -> None:
        class Broken:
            def open(self, _: Any) -> None:
                raise OSError("no weights")

            def process(self, *_: Any) -> None: ...

        feed = RecordingFeed([self.source.add("a", content(100))], endless=True)
        lane, _ = self.lane([], Broken(), feed=feed)
        async with closing(lane):
            with pytest.raises(BaseExceptionGroup) as raised:
                await lane.run()
        assert raised.group_contains(UsageError, match="no weights")
        assert feed.outcomes == []
