"""What lanes are tested against: a source, a feed and processors that do as the test says."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.errors import Kind
from app.items import Item, Outcome, Part
from app.lanes.budgets import Plan
from app.lanes.device import Device
from app.lanes.lane import Lane
from app.processors import Built, Loaded
from app.sources import Answer, Source, TryAgain, Version
from app.sources.sink import Sink

WINDOW = 1024
DEADLINE_S = 20.0


def content(length: int, seed: int = 0) -> bytes:
    """Bytes in which no window is like another."""
    return hashlib.shake_128(b"%d" % seed).digest(length)


def seen(blob: Any) -> bytes:
    """The bytes of a blob or a window, wherever it is."""
    return bytes(blob) if isinstance(blob, memoryview) else blob.cpu().numpy().tobytes()


@dataclass(eq=False)
class Blob:
    """What a scripted source has under one url."""

    data: bytes
    sized: bool = True  # its answers say the whole size
    ranges: bool = True  # parts can be had
    strong: str | None = None  # its ETag
    piece: int = WINDOW  # it sends so many bytes at once
    refusals: deque[Exception] = field(default_factory=deque)  # raised by the next requests
    breaks: list[int] = field(default_factory=list)  # before these bytes the body breaks off, once each
    gates: dict[int, asyncio.Event] = field(default_factory=dict)  # no byte from there on before the event
    afterthought: Exception | None = None  # raised when the last byte has been sent
    asked: list[Part | None] = field(default_factory=list)


@dataclass
class ScriptedReply:
    answer: Answer
    blob: Blob
    data: bytes  # of the version that it answered with
    source: ScriptedSource

    async def receive(self, sink: Sink) -> None:
        blob, position = self.blob, self.answer.start
        stop = len(self.data) if self.answer.length is None else position + self.answer.length
        while position < stop:
            view = sink.view()
            if view is None:
                await sink.wait()
                continue
            await self.source.turn()
            for gate in [gate for at, gate in blob.gates.items() if at <= position]:
                await gate.wait()
            if position in blob.breaks:
                blob.breaks.remove(position)
                raise TryAgain(Kind.TRUNCATED, f"broken before byte {position}")
            count = min(len(view), stop - position, blob.piece)
            view[:count] = self.data[position : position + count]
            position += count
            sink.advance(count)
            self.source.watch()
        await self.source.turn()
        if blob.afterthought is not None:
            raise blob.afterthought

    async def abandon(self) -> None: ...


class ScriptedSource:
    """Blobs by url. `turn` is awaited before each piece, `watch` called after it."""

    def __init__(self) -> None:
        self.blobs: dict[str, Blob] = {}
        self.turn: Callable[[], Awaitable[None]] = _yield
        self.watch: Callable[[], None] = _nothing

    def add(self, name: str, data: bytes, *, known: bool = False, **script: Any) -> Item:
        """An item with this content; `known`: its manifest says the size."""
        url = f"test://origin/{name}"
        self.blobs[url] = Blob(data, **script)
        return Item(name, url, len(data) if known else None)

    def blob(self, item: Item) -> Blob:
        return self.blobs[item.url or ""]

    async def ask(self, item: Item, part: Part | None, known: Version | None) -> ScriptedReply:  # noqa: ARG002
        blob = self.blob(item)
        blob.asked.append(part)
        await self.turn()
        if blob.refusals:
            raise blob.refusals.popleft()
        total = len(blob.data) if blob.sized else None
        version = Version(total, blob.strong)
        if not blob.ranges or part is None:
            return ScriptedReply(Answer(0, total, version, ranges=False), blob, blob.data, self)
        stop = min(part.stop, len(blob.data))
        return ScriptedReply(Answer(part.start, stop - part.start, version, ranges=True), blob, blob.data, self)


class Conductor:
    """Lets the pieces of all connections in one after another, in the order of these numbers."""

    def __init__(self, order: Iterator[int]) -> None:
        self._order = order
        self._waiting: list[asyncio.Future[None]] = []

    async def turn(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self._waiting = [future for future in self._waiting if not future.done()]
            if self._waiting:
                self._waiting.pop(next(self._order) % len(self._waiting)).set_result(None)


class RecordingFeed:
    """Hands out its items, and keeps what comes back."""

    def __init__(self, items: Sequence[Item], *, endless: bool = False) -> None:
        self.items = deque(items)
        self.outcomes: list[Outcome] = []
        self.given_back: list[Item] = []
        self.charged: str | None = None
        self.claimed = 0
        self.may_report = asyncio.Event()  # reports are durable only then
        self.may_report.set()
        self.reported = asyncio.Event()
        self.dry = asyncio.Event()  # a claim waits for items that do not come
        self._endless = endless

    async def claim(self, limit: int) -> Sequence[Item]:
        if not self.items and self._endless:
            self.dry.set()
            await asyncio.get_running_loop().create_future()
        items = [self.items.popleft() for _ in range(min(limit, len(self.items)))]
        self.claimed += len(items)
        return items

    async def report(self, outcomes: Sequence[Outcome]) -> None:
        await self.may_report.wait()
        self.outcomes.extend(outcomes)
        self.reported.set()

    async def give_back(self, items: Sequence[Item], charged: str | None) -> None:
        self.given_back.extend(items)
        self.charged = charged

    def by_id(self) -> dict[str, Outcome]:
        found = {outcome.id: outcome for outcome in self.outcomes}
        assert len(found) == len(self.outcomes), "an item has two outcomes"
        return found

    def results(self) -> dict[str, Any]:
        return {name: outcome.result for name, outcome in self.by_id().items()}

    def failures(self) -> dict[str, tuple[Kind, str]]:
        return {
            name: (outcome.error.kind, outcome.error.message)
            for name, outcome in self.by_id().items()
            if outcome.error is not None
        }


def loaded(
    processor: Any, *, streams: bool = False, needs_torch: bool = False, lands_on: Any = "device", spec: str = "test:it"
) -> Loaded:
    """A processor's object, or its function, as `load` would hand it to a lane."""
    names = ("open", "process", "begin", "update", "finish", "close")
    if any(hasattr(processor, name) for name in names):
        built = Built(*(getattr(processor, name, _nothing) for name in names))
    else:
        built = Built(_nothing, processor, _nothing, _nothing, _nothing, _nothing)
    return Loaded(spec, {}, lands_on, streams, needs_torch, lambda: built)


class Hashing:
    """Whole blobs and streams: the sha256 of what was seen, whose windows must come in order and without gaps."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._hash = hashlib.sha256()
        self._at = 0

    def process(self, blob: Any, item: Item) -> str:  # noqa: ARG002
        return sha256(seen(blob))

    def begin(self, item: Item) -> None:
        self.begun.append(item.id)
        self._hash, self._at = hashlib.sha256(), 0

    def update(self, window: Any, offset: int) -> None:
        assert offset == self._at, f"the window at {offset} came after byte {self._at}"
        assert len(window) > 0
        self._at += len(window)
        self._hash.update(seen(window))

    def finish(self, item: Item) -> str:
        assert self.begun[-1] == item.id
        return self._hash.hexdigest()


class Hold:
    """Where a processor waits until the test lets it go on, or ends."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self._released = threading.Event()

    def wait(self) -> None:
        self.inside.set()
        assert self._released.wait(DEADLINE_S)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, DEADLINE_S)

    def release(self) -> None:
        self._released.set()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plan(*, streams: bool = False, lands_here: bool = False, budget: int = 64 * WINDOW, **changed: Any) -> Plan:
    """A lane's plan with small windows; `budget` is of the landings, or for streams of the slabs."""
    slabs = budget // WINDOW if streams else 8 if lands_here else 0
    values: dict[str, Any] = {
        "connections": 4,
        "window_bytes": WINDOW,
        "slabs": slabs,
        "landing_bytes": 0 if streams else budget,
        "device_bytes": budget if lands_here else None,
        "part_bytes": 4 * WINDOW,
        "read_ahead_bytes": 16 * WINDOW,
        "streams": streams,
        "lands_here": lands_here,
        "host_setting": f"{budget}",
    }
    return Plan(**(values | changed))


def make_lane(
    made: Plan, device: Device, feed: Any, source: ScriptedSource, output: Path, *, attempts: int = 3
) -> Lane:
    def find(_: Item) -> Source:
        return source

    lane = Lane(made, device, feed, find, output, attempts=attempts, uniform=lambda: 0.0)
    source.watch = lambda: check_bounds(lane)
    return lane


def check_bounds(lane: Lane) -> None:
    """I1, whatever the lane is doing."""
    intake = lane._intake
    assert intake.landings.host.used <= intake.plan.landing_bytes
    assert intake.slabs.in_use <= intake.plan.slabs
    assert intake.landings._device_used <= (intake.landings.device_bytes or 0)


@asynccontextmanager
async def closing(lane: Lane) -> Any:
    """Bounds the time of a test, and ends the lane's threads."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield lane
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await lane.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop and the threads go on until it holds; the test's deadline bounds it."""
    for _ in itertools.count():
        if condition():
            return
        await asyncio.sleep(0)


async def run_lane(lane: Lane) -> None:
    """Run to the end, whence nothing may be left over."""
    async with closing(lane):
        await lane.run()
        check_bounds(lane)
        intake = lane._intake
        assert intake.items == []
        assert intake.slabs.in_use == 0
        assert intake.landings._device_used == 0


async def _yield() -> None:
    await asyncio.sleep(0)


def _nothing(*_: object) -> None: ...
