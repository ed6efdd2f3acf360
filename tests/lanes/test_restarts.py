"""Items that start over, or wait for room, while those behind them hold what there is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from lanes.lane_setting import Counting
from lanes.scripted import (
    WINDOW,
    Hashing,
    RecordingFeed,
    ScriptedSource,
    content,
    loaded,
    make_lane,
    plan,
    run_lane,
    sha256,
)

from app.errors import Kind
from app.items import Item
from app.lanes.device import Device
from app.lanes.steps import Copied, Landing

SLABS = 8
CONNECTIONS = 4


class OutOfMemoryOnce(Hashing):
    """Its first `finish` waits until the items behind have taken all slabs, and has no memory then."""

    def __init__(self, taken: threading.Event) -> None:
        super().__init__()
        self._taken = taken
        self._failed = False

    def finish(self, item: Item) -> Any:
        if not self._failed:
            self._failed = True
            assert self._taken.wait(10)
            raise MemoryError
        return super().finish(item)


async def test_a_stream_that_starts_over_leaves_the_slabs_to_those_that_have_them(tmp_path: Path) -> None:
    source, taken = ScriptedSource(), threading.Event()
    first, second = source.add("a", content(4 * WINDOW, 1)), source.add("b", content(40 * WINDOW, 2))
    # The slabs that a's last call does not hold are b's, and every reader waits for another one, for b.
    source.blob(second).asked = Counting(lambda count: taken.set() if count >= SLABS - 4 + CONNECTIONS else None)
    device = Device("cpu", loaded(OutOfMemoryOnce(taken), streams=True), torch_threads=1)
    budgets = plan(streams=True, budget=SLABS * WINDOW, connections=CONNECTIONS, part_bytes=WINDOW)
    lane = make_lane(budgets, device, feed := RecordingFeed([first, second]), source, tmp_path, attempts=3)
    await run_lane(lane)
    assert [outcome.id for outcome in feed.outcomes] == ["b", "a"]
    assert feed.by_id()["a"].result == sha256(source.blob(first).data)
    assert feed.by_id()["a"].attempts == 2


class HostGpu(Device):
    """A GPU whose memory is the host's: landings are made and filled as on one, by the same thread."""

    def _tensor(self, blob: Any, memory: Any) -> Any:  # noqa: ARG002
        return memoryview(b"" if blob is None else blob)

    def _land(self, landing: Landing, window: memoryview, offset: int, memory: Any) -> Copied:  # noqa: ARG002
        landing.tensor = landing.tensor or bytearray(landing.length)
        landing.tensor[offset : offset + len(window)] = window
        return Copied(self._clock(), self._clock())

    def _open(self) -> None:
        self._processor = self._loaded.build()


async def test_an_item_that_grew_on_the_host_lets_one_behind_it_use_the_room_on_the_gpu(tmp_path: Path) -> None:
    source = ScriptedSource()
    grown = source.add("a", content(6 * WINDOW, 1), sized=False, ranges=False)
    behind = source.add("b", content(6 * WINDOW, 2), known=True)  # together they do not fit
    device = HostGpu("cuda:0", loaded(Hashing()), torch_threads=1)
    lane = make_lane(
        plan(lands_here=True, budget=10 * WINDOW, connections=4),
        device,
        feed := RecordingFeed([grown, behind]),
        source,
        tmp_path,
    )
    await run_lane(lane)
    assert {outcome.id: outcome.result for outcome in feed.outcomes} == {
        item.id: sha256(source.blob(item).data) for item in (grown, behind)
    }


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("it has no text")


async def test_an_exception_that_has_no_text_costs_only_its_item(tmp_path: Path) -> None:
    def process(blob: Any, item: Item) -> int:
        if item.id == "a":
            raise Unspeakable
        return len(blob)

    source = ScriptedSource()
    items = [source.add(name, content(10)) for name in "ab"]
    device = Device("cpu", loaded(process), torch_threads=1)
    lane = make_lane(plan(), device, feed := RecordingFeed(items), source, tmp_path)
    await run_lane(lane)
    assert feed.by_id()["a"].error is not None
    assert feed.by_id()["a"].error.kind is Kind.PROCESSOR
    assert feed.by_id()["a"].error.message == "Unspeakable"
    assert feed.by_id()["b"].result == 10
