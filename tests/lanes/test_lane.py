"""The lane contract on the CPU, for any order of arrival, and what a lost device means."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes.lane_contract import LaneContract
from lanes.scripted import (
    WINDOW,
    Conductor,
    Hashing,
    RecordingFeed,
    ScriptedSource,
    closing,
    content,
    loaded,
    make_lane,
    plan,
    run_lane,
    sha256,
)

from app.errors import RunError
from app.items import Item
from app.lanes.device import Device
from app.lanes.steps import DeviceLost


class TestOnTheCpu(LaneContract):
    device_name = "cpu"


class TestOnTheCpuWithTorch(LaneContract):
    device_name = "cpu:1"
    needs_torch = True


# For any order:

BLOBS = st.lists(
    st.fixed_dictionaries(
        {
            "size": st.one_of(st.integers(0, 12 * WINDOW), st.sampled_from([WINDOW, 2 * WINDOW, 6 * WINDOW])),
            "known": st.booleans(),
            "sized": st.booleans(),
            "ranges": st.booleans(),
            "piece": st.sampled_from([100, WINDOW, 5000]),
            "breaks": st.booleans(),
        }
    ),
    min_size=1,
    max_size=8,
)
PLANS = st.fixed_dictionaries(
    {
        "connections": st.integers(1, 9),
        "part_bytes": st.integers(1, 5).map(lambda windows: windows * WINDOW),
        "budget": st.integers(12, 40).map(lambda windows: windows * WINDOW),
        "read_ahead_bytes": st.integers(0, 40 * WINDOW),
    }
)


def add(source: ScriptedSource, index: int, blob: dict[str, Any]) -> Item:
    breaks = [blob["size"] // 2] if blob["breaks"] and blob["ranges"] and blob["sized"] else []
    script = {name: blob[name] for name in ("known", "sized", "piece")}
    ranges = blob["ranges"] and (blob["sized"] or blob["known"])
    return source.add(f"{index}", content(blob["size"], index), ranges=ranges, breaks=breaks, **script)


@given(BLOBS, PLANS, st.lists(st.integers(0, 100), max_size=30), st.booleans())
@settings(max_examples=150, deadline=None)
def test_for_any_layout_and_order_of_arrival_each_item_is_whole_and_memory_bounded(
    blobs: list[dict[str, Any]], made: dict[str, Any], order: list[int], streams: bool
) -> None:
    async def body(output: Path) -> None:
        source = ScriptedSource()
        items = [add(source, index, blob) for index, blob in enumerate(blobs)]
        feed = RecordingFeed(items)
        device = Device("cpu", loaded(Hashing(), streams=streams), torch_threads=1)
        lane = make_lane(plan(streams=streams, **made), device, feed, source, output)
        conductor = Conductor(itertools.cycle(order or [0]))
        source.turn = conductor.turn
        conducting = asyncio.ensure_future(conductor.run())
        try:
            await run_lane(lane)
        finally:
            conducting.cancel()
        assert feed.results() == {item.id: sha256(source.blob(item).data) for item in items}

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(body(Path(folder)))


# A lost device:


class Losing(Device):
    """A device that is lost when it comes to this item, as a GPU is by a poisonous error."""

    deadly = "deadly"

    def _attempt(self, step: Any) -> Any:
        if step.item.id == self.deadly:
            self._lost = "an illegal memory access"
            raise DeviceLost(self.name, self._lost, step.item.id)
        return super()._attempt(step)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("endless", [False, True], ids=["no more items", "waiting for items"])
async def test_a_lost_device_gives_its_items_back_and_says_which_was_on_it(
    streams: bool, endless: bool, tmp_path: Path
) -> None:
    source = ScriptedSource()
    names = ["a", "deadly", "b", "c"]
    items = [source.add(name, content(3 * WINDOW)) for name in names]
    feed = RecordingFeed(items, endless=endless)
    device = Losing("cpu", loaded(Hashing(), streams=streams), torch_threads=1)
    lane = make_lane(plan(streams=streams), device, feed, source, tmp_path)
    async with closing(lane):
        with pytest.raises(DeviceLost, match="cpu is lost: an illegal memory access"):
            await lane.run()
    claimed = names[: feed.claimed]
    assert "deadly" in claimed
    assert sorted([*feed.by_id(), *(item.id for item in feed.given_back)]) == sorted(claimed)
    assert feed.charged == "deadly"
    assert lane.snapshot().doing == "lost"


async def test_what_was_done_before_the_device_was_lost_is_reported(tmp_path: Path) -> None:
    source = ScriptedSource()
    items = [source.add(name, content(3 * WINDOW)) for name in ("a", "b", "deadly")]
    feed = RecordingFeed(items)
    feed.may_report.clear()
    lane = make_lane(plan(), Losing("cpu", loaded(Hashing()), torch_threads=1), feed, source, tmp_path)
    async with closing(lane), asyncio.TaskGroup() as group:
        running = group.create_task(_lost(lane.run()))
        for _ in range(200):
            await asyncio.sleep(0)
        feed.may_report.set()
        await running
    assert sorted(feed.by_id()) == ["a", "b"]
    assert [item.id for item in feed.given_back] == ["deadly"]


async def _lost(running: Any) -> None:
    with pytest.raises(DeviceLost):
        await running


# Whoever it works for:


class FailingFeed(RecordingFeed):
    async def report(self, outcomes: Any) -> None:  # noqa: ARG002
        raise RunError("the disk is full")


async def test_a_feed_that_fails_ends_the_lane(tmp_path: Path) -> None:
    source = ScriptedSource()
    feed = FailingFeed([source.add("a", content(100)), source.add("b", content(3 * WINDOW))], endless=True)
    lane = make_lane(plan(), Device("cpu", loaded(Hashing()), torch_threads=1), feed, source, tmp_path)
    async with closing(lane):
        with pytest.raises(BaseExceptionGroup) as raised:
            await lane.run()
    assert raised.group_contains(RunError, match="the disk is full")


async def test_an_artifact_that_cannot_be_written_ends_the_lane(tmp_path: Path) -> None:
    source = ScriptedSource()
    feed = RecordingFeed([source.add("a", content(100))])
    output = tmp_path / "file"
    output.write_text("no folder")
    lane = make_lane(plan(), Device("cpu", loaded(lambda *_: b"artifact"), torch_threads=1), feed, source, output)
    async with closing(lane):
        with pytest.raises(BaseExceptionGroup) as raised:
            await lane.run()
    assert raised.group_contains(RunError)
    assert feed.outcomes == []


async def test_a_cancelled_lane_leaves_the_device_to_finish_and_reports_nothing(tmp_path: Path) -> None:
    source = ScriptedSource()
    feed = RecordingFeed([source.add("a", content(100), gates={0: asyncio.Event()})])
    lane = make_lane(plan(), Device("cpu", loaded(Hashing()), torch_threads=1), feed, source, tmp_path)
    async with closing(lane):
        running = asyncio.ensure_future(lane.run())
        for _ in range(50):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    assert feed.outcomes == []
