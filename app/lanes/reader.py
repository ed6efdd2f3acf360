"""One reader of a lane: takes a part, asks for it, receives it, and tries again what is worth it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from app.errors import ItemError, Kind
from app.items import Part
from app.lanes.opened import Work
from app.lanes.sinks import PartSink
from app.sources import Answer, Source, StartOver, TryAgain
from app.sources.retry import Patience, wait_s


class Parts(Protocol):
    """What a reader needs of its lane."""

    async def take(self) -> Work | None:
        """The next part of the oldest item that has one; waits for it. None when there will be no more."""

    def source(self, work: Work) -> Source: ...

    def answered(self, work: Work, answer: Answer) -> PartSink | None:
        """Where its bytes go; None: nowhere yet, let go of it. Raises: ItemError, StartOver."""

    def complete(self, work: Work) -> None:
        """All bytes of the part are in the sink."""

    def fail(self, work: Work, error: ItemError | TryAgain) -> None:
        """Its item fails."""

    def start_over(self, work: Work, why: StartOver) -> None:
        """Its item is to be fetched anew."""

    def let_go(self, work: Work) -> None:
        """The reader is done with it, however it went."""


async def read_parts(lane: Parts, attempts: int, uniform: Callable[[], float]) -> None:
    """Read parts until there are no more. One that is abandoned in mid-transfer is let go of."""
    while True:
        work = await lane.take()
        if work is None:
            return
        try:
            await _read(lane, work, attempts, uniform)
        except ItemError as error:
            lane.fail(work, error)
        except StartOver as why:
            lane.start_over(work, why)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not work.abandoned or task is None or task.uncancel() > 0:
                raise
        finally:
            lane.let_go(work)


async def _read(lane: Parts, work: Work, attempts: int, uniform: Callable[[], float]) -> None:
    patience, source = Patience(attempts), lane.source(work)
    finished = False
    while not finished:
        began_at_s = time.monotonic()
        try:
            finished = await _ask_and_receive(lane, work, source)
        except TryAgain as error:
            finished = _has_all(work)  # what broke after the last byte breaks nothing
            if not finished and not error.charged:
                await _memory(work)
            elif not finished:
                failures = patience.failed(_position(work))
                if failures is None:
                    lane.fail(work, error)
                    return
                work.opened.tries += 1
                await asyncio.sleep(wait_s(failures, uniform, error.after_s))
        finally:
            work.opened.receive.add(began_at_s, time.monotonic())
    if work.sink is not None:
        work.sink.end()
        lane.complete(work)


async def _ask_and_receive(lane: Parts, work: Work, source: Source) -> bool:
    """One request; whether the part is done with, or its rest must be asked for."""
    reply = await source.ask(work.opened.item, _missing(work), work.opened.version)
    try:
        sink = lane.answered(work, reply.answer)
    except BaseException:
        await reply.abandon()
        raise
    if sink is None:
        await reply.abandon()
        return True
    work.sink = sink
    await reply.receive(sink)
    if work.stop is None or _has_all(work):
        return True
    if reply.answer.length is None:
        raise TryAgain(Kind.TRUNCATED, f"{work.opened.item.id}: the body ended at byte {sink.position} of {work.stop}")
    return False


async def _memory(work: Work) -> None:
    """Wait until there is memory for the part's next byte: a connection that was dropped for want of it would only
    be dropped again."""
    if work.sink is not None and work.sink.view() is None:
        await work.sink.wait()


def _has_all(work: Work) -> bool:
    return work.sink is not None and work.stop is not None and work.sink.position >= work.stop


def _missing(work: Work) -> Part | None:
    """What of the part is still to be asked for.

    Raises: StartOver where the rest of a body of unknown length would be needed.
    """
    if work.sink is None or not work.sink.position:
        return work.part
    if work.stop is None:
        raise StartOver("the body of unknown length broke off", whole=work.part is None)
    return Part(work.sink.position, work.stop)


def _position(work: Work) -> int:
    start = work.part.start if work.part is not None else 0
    return work.sink.position if work.sink is not None else start
