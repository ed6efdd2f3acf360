"""What holds of a lane on any kind of device; the tests of each kind inherit it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from lanes.scripted import (
    WINDOW,
    Hashing,
    Hold,
    RecordingFeed,
    ScriptedSource,
    closing,
    content,
    loaded,
    make_lane,
    plan,
    run_lane,
    seen,
    sha256,
    until,
)

from app.errors import ItemError, Kind, UsageError
from app.items import Item, Status
from app.lanes.device import Device
from app.lanes.lane import Lane
from app.sources import StartOver, TryAgain

SIZES = (0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 4 * WINDOW, 13 * WINDOW + 7)


def both(test: Any) -> Any:
    return pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])(test)


class LaneContract:
    """`device_name` is what differs."""

    device_name: ClassVar[str]
    needs_torch: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _output(self, tmp_path: Path) -> None:
        self.output = tmp_path
        self.source = ScriptedSource()

    def lane(
        self,
        items: Sequence[Item],
        processor: Any = None,
        *,
        streams: bool = False,
        attempts: int = 3,
        feed: RecordingFeed | None = None,
        **changed: Any,
    ) -> tuple[Lane, RecordingFeed]:
        found = loaded(processor or Hashing(), streams=streams, needs_torch=self.needs_torch)
        device = Device(self.device_name, found, torch_threads=1)
        made = plan(streams=streams, lands_here=device.is_cuda and not streams, **changed)
        feed = feed or RecordingFeed(items)
        return make_lane(made, device, feed, self.source, self.output, attempts=attempts), feed

    async def run(self, items: Sequence[Item], processor: Any = None, **flags: Any) -> RecordingFeed:
        lane, feed = self.lane(items, processor, **flags)
        await run_lane(lane)
        assert sorted(feed.by_id()) == sorted(item.id for item in items)
        assert feed.given_back == []
        return feed

    def digests(self, items: Sequence[Item]) -> dict[str, str]:
        return {item.id: sha256(self.source.blob(item).data) for item in items}

    # Every item, one outcome:

    @both
    @pytest.mark.parametrize("known", [True, False], ids=["size in the manifest", "size unknown"])
    @pytest.mark.parametrize(("sized", "ranges"), [(True, True), (True, False), (False, False)])
    async def test_every_item_is_processed_whatever_its_source_says(
        self, streams: bool, known: bool, sized: bool, ranges: bool
    ) -> None:
        items = [
            self.source.add(f"{size}", content(size, size), known=known, sized=sized, ranges=ranges) for size in SIZES
        ]
        feed = await self.run(items, streams=streams)
        assert feed.results() == self.digests(items)
        assert {name: outcome.bytes for name, outcome in feed.by_id().items()} == {f"{size}": size for size in SIZES}
        assert {outcome.attempts for outcome in feed.outcomes} == {1}
        assert {outcome.device for outcome in feed.outcomes} == {self.device_name}

    @both
    async def test_kinds_of_sources_may_be_mixed(self, streams: bool) -> None:
        items = [
            self.source.add(
                f"{index}", content(3000 * (index % 5), index), known=index % 2 == 0,
                sized=index % 3 > 0, ranges=index % 3 == 2,
            )
            for index in range(30)
        ]  # fmt: skip
        feed = await self.run(items, streams=streams)
        assert feed.results() == self.digests(items)

    @both
    @pytest.mark.parametrize("connections", [1, 2, 32])
    async def test_any_number_of_connections_gets_through(self, streams: bool, connections: int) -> None:
        items = [self.source.add(f"{index}", content(9000, index)) for index in range(6)]
        feed = await self.run(items, streams=streams, connections=connections, budget=20 * WINDOW)
        assert feed.results() == self.digests(items)

    async def test_as_few_slabs_as_one_carry_a_stream(self) -> None:
        items = [self.source.add(f"{index}", content(9000, index)) for index in range(3)]
        feed = await self.run(items, streams=True, budget=WINDOW)
        assert feed.results() == self.digests(items)

    @both
    async def test_many_small_items_are_processed(self, streams: bool) -> None:
        items = [self.source.add(f"{index}", content(index % 50, index)) for index in range(1500)]
        feed = await self.run(items, streams=streams)
        assert feed.results() == self.digests(items)

    async def test_no_items_at_all_end_the_lane(self) -> None:
        assert (await self.run([])).outcomes == []

    async def test_tensors_and_bytes_of_a_result_are_on_disk_when_it_is_reported(self) -> None:
        items = [self.source.add(f"{index}", content(2000, index)) for index in range(3)]
        feed = await self.run(items, lambda blob, _: {"copy": seen(blob), "n": len(blob)})
        for item in items:
            [artifact] = feed.by_id()[item.id].artifacts
            assert (self.output / artifact).read_bytes() == self.source.blob(item).data

    # Memory:

    async def test_an_item_that_can_never_fit_fails_at_once_with_both_figures_and_the_setting(self) -> None:
        big = self.source.add("big", content(9 * WINDOW))
        told = self.source.add("told", content(9 * WINDOW), known=True)
        small = self.source.add("small", content(WINDOW))
        feed = await self.run([big, told, small], budget=8 * WINDOW)
        setting = "--device-buffer" if self.device_name.startswith("cuda") else "--host-buffer"
        for name in ("big", "told"):
            kind, message = feed.failures()[name]
            assert kind is Kind.TOO_LARGE
            assert f"{name}: its {9 * WINDOW} bytes do not fit in a landing of at most {8 * WINDOW} bytes" in message
            assert f"raise {setting}" in message
        assert self.source.blob(told).asked == []
        assert feed.results()["small"] is not None

    async def test_streams_are_never_too_large(self) -> None:
        items = [self.source.add("big", content(200 * WINDOW))]
        assert (await self.run(items, streams=True, budget=8 * WINDOW)).results() == self.digests(items)

    @pytest.mark.parametrize("known", [True, False])
    async def test_items_with_room_for_one_take_turns(self, known: bool) -> None:
        items = [self.source.add(f"{index}", content(6 * WINDOW, index), known=known) for index in range(5)]
        feed = await self.run(items, budget=8 * WINDOW)
        assert feed.results() == self.digests(items)

    async def test_items_of_unknown_length_grow_within_the_budget(self) -> None:
        items = [
            self.source.add(f"{index}", content(6 * WINDOW, index), sized=index % 2 == 0, ranges=index % 2 == 0)
            for index in range(6)
        ]
        feed = await self.run(items, budget=8 * WINDOW)
        assert feed.results() == self.digests(items)

    async def test_an_item_of_unknown_length_beyond_the_budget_fails_as_too_large(self) -> None:
        small = [self.source.add(f"{index}", content(3 * WINDOW, index)) for index in range(3)]
        big = self.source.add("big", content(9 * WINDOW), sized=False, ranges=False)
        feed = await self.run([*small[:2], big, small[2]], budget=8 * WINDOW)
        kind, message = feed.failures()["big"]
        assert kind is Kind.TOO_LARGE
        assert "big: it is of unknown length" in message
        assert f"{9 * WINDOW} bytes" in message
        assert f"at most {8 * WINDOW} bytes" in message
        assert {name: feed.results()[name] for name in ("0", "1", "2")} == self.digests(small)

    async def test_a_processor_that_holds_on_to_blobs_gets_new_memory_and_a_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        held: list[Any] = []

        def hold(blob: Any, _: Item) -> str:
            held.append(blob)
            return sha256(seen(blob))

        items = [self.source.add(f"{index}", content(3000, index)) for index in range(6)]
        feed = await self.run(items, hold, budget=8 * WINDOW)
        assert feed.results() == self.digests(items)
        assert [sha256(seen(blob)) for blob in held] == [feed.results()[item.id] for item in items]
        if not self.device_name.startswith("cuda"):
            assert caplog.text.count("is still referred to") == 6

    async def test_landings_are_used_again(self, caplog: pytest.LogCaptureFixture) -> None:
        items = [self.source.add(f"{index}", content(3000, index)) for index in range(200)]
        feed = await self.run(items)
        assert feed.results() == self.digests(items)
        assert "is still referred to" not in caplog.text

    # What sources do:

    @both
    async def test_a_broken_body_is_continued_at_its_first_missing_byte(self, streams: bool) -> None:
        broken = self.source.add("a", content(9000), breaks=[WINDOW, 2 * WINDOW, 5 * WINDOW])
        feed = await self.run([broken], streams=streams)
        assert feed.results() == self.digests([broken])
        assert feed.by_id()["a"].attempts == 4
        starts = [part.start for part in self.source.blob(broken).asked if part is not None]
        assert sorted(starts) == [0, WINDOW, 2 * WINDOW, 4 * WINDOW, 5 * WINDOW, 8 * WINDOW]

    @both
    async def test_a_source_that_never_answers_fails_its_item_alone(self, streams: bool) -> None:
        refusals = [TryAgain(Kind.HTTP_STATUS, "503 once more") for _ in range(3)]
        bad = self.source.add("bad", content(9000), refusals=deque(refusals))
        good = self.source.add("good", content(9000))
        feed = await self.run([bad, good], streams=streams)
        assert feed.failures() == {"bad": (Kind.HTTP_STATUS, "503 once more")}
        assert feed.by_id()["bad"].attempts == 3
        assert feed.results()["good"] == sha256(content(9000))

    @both
    async def test_an_item_that_its_source_refuses_fails_alone(self, streams: bool) -> None:
        bad = self.source.add("bad", b"", refusals=deque([ItemError(Kind.NOT_FOUND, "gone")]))
        good = self.source.add("good", content(3 * WINDOW))
        feed = await self.run([bad, good], streams=streams)
        assert feed.failures() == {"bad": (Kind.NOT_FOUND, "gone")}

    @both
    async def test_a_part_that_fails_gives_up_the_others_of_its_item(self, streams: bool) -> None:
        never = asyncio.Event()
        bad = self.source.add("bad", content(20 * WINDOW), known=True, gates={4 * WINDOW: never})
        good = self.source.add("good", content(3 * WINDOW))
        blob = self.source.blob(bad)

        def fail_the_third(asked: Any) -> None:
            if asked == 3:
                blob.refusals.append(ItemError(Kind.FORBIDDEN, "no more"))

        blob.asked = _Counting(fail_the_third)
        feed = await self.run([bad, good], streams=streams)
        assert feed.failures() == {"bad": (Kind.FORBIDDEN, "no more")}
        assert feed.results()["good"] == sha256(content(3 * WINDOW))

    @both
    async def test_an_item_that_changes_is_fetched_anew_as_one_version(self, streams: bool) -> None:
        item = self.source.add("a", content(20 * WINDOW, 1), strong="one")
        blob = self.source.blob(item)

        def change_at_the_third(asked: int) -> None:
            if asked == 3:
                blob.data, blob.strong = content(15 * WINDOW, 2), "two"

        blob.asked = _Counting(change_at_the_third)
        feed = await self.run([item], streams=streams)
        assert feed.results() == {"a": sha256(content(15 * WINDOW, 2))}
        assert feed.by_id()["a"].attempts == 2
        assert feed.by_id()["a"].bytes == 15 * WINDOW

    @both
    async def test_an_item_that_changes_all_the_time_is_given_up(self, streams: bool) -> None:
        item = self.source.add("a", content(20 * WINDOW), strong="0")
        blob = self.source.blob(item)

        def change(asked: int) -> None:
            blob.strong = f"{asked}"

        blob.asked = _Counting(change)
        good = self.source.add("good", content(20 * WINDOW))
        feed = await self.run([item, good], streams=streams)
        kind, message = feed.failures()["a"]
        assert kind is Kind.CHANGED
        assert "given up after 3 starts" in message
        assert feed.results()["good"] == sha256(content(20 * WINDOW))

    @both
    @pytest.mark.parametrize("position", [0, WINDOW])
    async def test_a_server_that_turns_to_whole_bodies_is_followed(self, streams: bool, position: int) -> None:
        item = self.source.add("a", content(20 * WINDOW), breaks=[position])
        blob = self.source.blob(item)

        def turn_at_the_second(asked: int) -> None:
            blob.ranges = asked < 2

        blob.asked = _Counting(turn_at_the_second)
        feed = await self.run([item], streams=streams, connections=1)
        assert feed.results() == self.digests([item])
        assert list(blob.asked)[-1] is None

    @both
    async def test_a_body_longer_than_the_manifest_says_fails_its_item_alone(self, streams: bool) -> None:
        long = self.source.add("long", content(3 * WINDOW), sized=False, ranges=False)
        good = self.source.add("good", content(3 * WINDOW))
        feed = await self.run([Item("long", long.url, 2 * WINDOW), good], streams=streams)
        kind, message = feed.failures()["long"]
        assert kind is Kind.INTEGRITY
        assert f"more than the {2 * WINDOW} bytes" in message
        assert feed.results()["good"] == sha256(content(3 * WINDOW))

    @both
    async def test_a_size_other_than_the_manifests_fails_its_item_alone(self, streams: bool) -> None:
        item = self.source.add("a", content(3 * WINDOW))
        good = self.source.add("good", content(3 * WINDOW))
        feed = await self.run([Item("a", item.url, 2 * WINDOW), good], streams=streams)
        assert feed.failures()["a"][0] is Kind.INTEGRITY

    async def test_an_item_without_a_url_fails_as_unsupported(self) -> None:
        feed = await self.run([Item("a", None)])
        assert feed.failures()["a"][0] is Kind.UNSUPPORTED

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
            await until(lambda: lane._intake.held_back and not lane._intake.items)
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


class _Counting(list[Any]):
    """A blob's `asked`, which acts on how many requests there have been."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self._act = act

    def append(self, part: Any) -> None:
        super().append(part)
        self._act(len(self))
