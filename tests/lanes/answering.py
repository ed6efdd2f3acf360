"""A real intake with its readers, and a source that answers one request after another as the test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lanes.scripted import WINDOW, plan

from app.errors import Kind
from app.items import Failure, Item, Part
from app.lanes.intake import Intake
from app.lanes.opened import OpenItem, Window
from app.lanes.reader import read_parts
from app.sources import Answer, TryAgain, Version
from app.sources.sink import Sink

URL = "test://origin/blob"
DEADLINE_S = 10


@dataclass
class Step:
    """What becomes of one request: it is refused, or so many bytes of its answer come, and then it ends somehow."""

    refused: Exception | None = None
    sends: int | None = None  # None: all that it announces
    ends: Exception | None = None
    gate: asyncio.Event | None = None  # opens before anything of the body comes
    most: int | None = None  # the answer announces no more than so many bytes
    ranges: bool = True
    announced: bool = True  # the length of a whole body


@dataclass
class Script:
    """A source of one blob: a step for each request, in order, and when there are none the plain truth."""

    data: bytes
    steps: deque[Step] = field(default_factory=deque)
    asked: list[Part | None] = field(default_factory=list)
    known: list[Version | None] = field(default_factory=list)
    abandoned: int = 0
    receiving: asyncio.Event = field(default_factory=asyncio.Event)
    version: Version | None = None

    async def ask(self, item: Item, part: Part | None, known: Version | None) -> Reply:  # noqa: ARG002
        self.asked.append(part)
        self.known.append(known)
        step = self.steps.popleft() if self.steps else Step()
        if step.refused is not None:
            raise step.refused
        version = self.version or Version(len(self.data), '"one"')
        if part is None or not step.ranges:
            length = len(self.data) if step.announced else None
            answer = Answer(0, length, version if step.announced else Version(None), ranges=False)
        else:
            length = min(part.stop, len(self.data), part.start + (step.most or 1 << 60)) - part.start
            answer = Answer(part.start, length, version, ranges=True)
        return Reply(answer, self, step)


@dataclass
class Reply:
    answer: Answer
    script: Script
    step: Step

    async def receive(self, sink: Sink) -> None:
        self.script.receiving.set()
        if self.step.gate is not None:
            await self.step.gate.wait()
        at = self.answer.start
        announced = len(self.script.data) - at if self.answer.length is None else self.answer.length
        stop = at + (announced if self.step.sends is None else min(self.step.sends, announced))
        while at < stop:
            view = sink.view()
            if view is None:
                await sink.wait()
                continue
            count = min(len(view), stop - at)
            view[:count] = self.script.data[at : at + count]
            sink.advance(count)
            at += count
        if self.step.ends is not None:
            raise self.step.ends

    async def abandon(self) -> None:
        self.script.abandoned += 1


class Lane:
    """An intake of whole blobs on the host, with its readers."""

    def __init__(self, *steps: Step, data: bytes = b"", attempts: int = 3, **changed: object) -> None:
        self.script = Script(data, deque(steps))
        self.failed: list[Failure] = []
        self.windows: list[Window] = []
        self.ended = asyncio.Event()
        self.attempts = attempts
        changes = {"budget": max(len(data), WINDOW) * 4} | changed
        self.intake = Intake(plan(**changes), lambda _: self.script, attempts, self._arrived, self._fail)

    def open(self, size: int | None = None) -> OpenItem:
        self.opened = self.intake.open(Item("blob", URL, size))
        return self.opened

    def _arrived(self, window: Window) -> None:
        self.windows.append(window)
        if self.intake.landed(window.opened, window.length):
            self.ended.set()

    def _fail(self, _: OpenItem, failure: Failure) -> None:
        self.failed.append(failure)
        self.ended.set()

    async def run(self, readers: int = 1, uniform: Callable[[], float] = lambda: 0.0) -> None:
        """Read until the item is whole or has failed, and no reader holds a part."""
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            for _ in range(readers):
                group.create_task(read_parts(self.intake, self.attempts, uniform))
            await self.ended.wait()
            self.intake.close()
        assert not self.opened.works

    def received(self) -> bytes:
        assert not self.failed
        assert self.opened.memory is not None
        return bytes(self.opened.memory.view(self.opened.size or 0))


def again(kind: Kind = Kind.TRUNCATED, **more: object) -> TryAgain:
    return TryAgain(kind, "broken", **more)
