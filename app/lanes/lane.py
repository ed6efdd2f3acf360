"""One lane: items in, outcomes out; between them readers → queue → consumer → device thread.

A lane knows nothing of manifests and ledgers: it claims items from a feed, and reports outcomes to it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from app.errors import ItemError
from app.items import Failure, Item, Outcome, Seconds, Status, timestamp
from app.lanes.budgets import DEVICE_SHARE, Plan
from app.lanes.consumer import Consumer
from app.lanes.device import Device
from app.lanes.intake import Intake
from app.lanes.opened import OpenItem, State
from app.lanes.reader import read_parts
from app.lanes.steps import DeviceLost
from app.results import store, weight
from app.sources import Source

_MOST_UNREPORTED = 1024  # items
_MOST_UNREPORTED_BYTES = 256 << 20  # of their results
_REPORTED_AT_ONCE = 256


class Feed(Protocol):
    """What a lane asks of whoever it works for: the one seam that lets it live anywhere."""

    async def claim(self, limit: int) -> Sequence[Item]:
        """Up to so many items; waits for one. Empty: there will be no more. Cancelled, it has claimed none."""

    async def report(self, outcomes: Sequence[Outcome]) -> None:
        """Take outcomes, whose artifacts are on disk; returns when they are durable."""

    async def give_back(self, items: Sequence[Item], charged: str | None) -> None:
        """Take items back that have no outcome. The one with the charged id was on the device when it was lost."""


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """What a lane is doing."""

    device: str
    doing: str  # starting, waiting, processing, lost or ended
    item: str | None  # the id of the item on the device, or else of the oldest open one
    item_bytes: int | None  # its size, where known
    item_received_bytes: int
    open_items: int
    received_bytes: int  # of the lane, in all
    connections_busy: int
    done: int
    failed: int
    processed_s: float
    landed_s: float  # copying to the GPU
    waited_s: float  # the device waited for data


class Lane:
    """One device with its readers, its queue and its consumer."""

    def __init__(
        self,
        plan: Plan,
        device: Device,
        feed: Feed,
        source: Callable[[Item], Source],
        output: Path,
        *,
        attempts: int,
        uniform: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._device = device
        self._feed = feed
        self._output = output
        self._attempts = attempts
        self._uniform = uniform
        self._clock = clock
        self._consumer = Consumer(device, self._finished, self._device_lost)
        self._intake = Intake(plan, source, attempts, self._consumer.arrived, self._failed_to_come)
        self._consumer.feed_from(self._intake)
        self._unreported: asyncio.Queue[tuple[OpenItem, Any] | None] = asyncio.Queue()  # bounded by `_hold_back`
        self._unreported_bytes = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"writer-{device.name}")
        self._exhausted = False
        self._stopping = False
        self._ended = False
        self._lost: DeviceLost | None = None
        self._given_back: list[Item] = []
        self._claiming: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._done = self._failed = 0
        self._opened_at_s: float | None = None
        self._ended_at_s: float | None = None

    async def run(self) -> None:
        """Work until the feed has no more items and the last one is reported.

        Raises: DeviceLost, when what has no outcome has been given back; UsageError where the device or the
        processor cannot be opened; whatever the feed raises. Cancelled, it drops what is under way, but the device
        thread goes on with its call: `close` waits for it.
        """
        if self._ended:
            return  # stopped before it started
        try:
            async with asyncio.TaskGroup() as group:
                self._opening = group.create_task(self._open_device())
                self._claiming = group.create_task(self._claim())
                group.create_task(self._consumer.run())
                group.create_task(self._report())
                for _ in range(self._plan.connections):
                    group.create_task(read_parts(self._intake, self._attempts, self._uniform))
        finally:
            self._ended_at_s = self._clock()
            self._intake.landings.close()
            self._writer.shutdown(wait=False)
        if self._lost is not None:
            await self._feed.give_back(self._given_back, self._lost.item_id)
            raise self._lost

    async def close(self) -> None:
        """Close the processor on the device thread, after what runs there."""
        await self._device.close()

    def stop(self) -> None:
        """Take no more items and drop those that are not on the device; what is there is finished and reported.

        A stream counts as there when its download is whole and the processor has begun it.
        """
        self._stop_claiming()
        self._drop_items()

    def snapshot(self) -> LaneSnapshot:
        items, consumer = self._intake.items, self._consumer
        now_s = self._ended_at_s if self._ended_at_s is not None else self._clock()
        shown = consumer.on_device or (items[0] if items else None)
        open_s = now_s - self._opened_at_s if self._opened_at_s is not None else 0.0
        busy_s = consumer.busy_s + (now_s - consumer.called_at_s if consumer.calling else 0.0)
        return LaneSnapshot(
            device=self._device.name,
            doing=self._doing(),
            item=shown.item.id if shown else None,
            item_bytes=shown.size if shown else None,
            item_received_bytes=shown.received_bytes if shown else 0,
            open_items=len(items),
            received_bytes=self._intake.received_bytes + sum(opened.received_bytes for opened in items),
            connections_busy=sum(len(opened.works) for opened in items),
            done=self._done,
            failed=self._failed,
            processed_s=busy_s,
            landed_s=consumer.landing_s,
            waited_s=max(0.0, open_s - busy_s),
        )

    def _doing(self) -> str:
        if self._lost is not None:
            return "lost"
        if self._ended:
            return "ended"
        if not self._consumer.is_open:
            return "starting"
        return "processing" if self._consumer.calling else "waiting"

    # Its tasks:

    async def _open_device(self) -> None:
        await self._device.open()
        if self._plan.lands_here and self._plan.device_bytes is None:
            self._intake.learn_device_bytes(int(await self._device.free_bytes() * DEVICE_SHARE))
        self._opened_at_s = self._clock()
        self._consumer.is_open = True
        self._consumer.wake()

    async def _claim(self) -> None:
        while not self._stopping:
            wanted = self._intake.wanted()
            if not wanted:
                self._intake.room.clear()
                await self._intake.room.wait()
                continue
            items = await self._feed.claim(wanted)
            if not items:
                break
            for item in items:
                self._intake.open(item)
        self._exhausted = True
        self._end_if_done()

    async def _report(self) -> None:
        loop, ended = asyncio.get_running_loop(), False
        while not ended:
            batch = [await self._unreported.get()]
            while len(batch) < _REPORTED_AT_ONCE and not self._unreported.empty():
                batch.append(self._unreported.get_nowait())
            ended = batch[-1] is None
            finished = [entry for entry in batch if entry is not None]
            if finished:
                outcomes = await loop.run_in_executor(self._writer, self._outcomes, finished)
                await self._feed.report(outcomes)
                self._unreported_bytes -= sum(weight(value) for _, value in finished)
                for outcome in outcomes:
                    self._done += outcome.status is Status.DONE
                    self._failed += outcome.status is Status.FAILED
                self._hold_back()
                self._intake.room.set()
                self._consumer.wake()

    # What happens to items:

    def _finished(self, opened: OpenItem, outcome: Any) -> None:
        self._unreported.put_nowait((opened, outcome))
        self._unreported_bytes += weight(outcome)
        self._hold_back()
        self._end_if_done()

    def _hold_back(self) -> None:
        """Where storing and committing cannot keep up, no more items are claimed, and the device waits."""
        many = self._unreported.qsize() >= _MOST_UNREPORTED or self._unreported_bytes >= _MOST_UNREPORTED_BYTES
        self._intake.held_back = self._consumer.held_back = many

    def _failed_to_come(self, opened: OpenItem, failure: Failure) -> None:
        self._consumer.drop(opened)
        self._finished(opened, failure)

    def _device_lost(self, error: DeviceLost) -> None:
        if self._lost is None:
            self._lost = error
            self._consumer.is_open = False
            self._stop_claiming()
            self._drop_items()

    def _stop_claiming(self) -> None:
        self._stopping = True
        if self._claiming is not None:
            self._claiming.cancel()  # it may wait for items that only this lane could give back

    def _drop_items(self) -> None:
        for opened in list(self._intake.items):
            there = opened.state is State.ON_DEVICE or (opened.state is State.WHOLE and opened.begun)
            if not there or self._lost is not None:
                self._given_back.append(opened.item)
                self._consumer.drop(opened)
                self._intake.end(opened)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if (self._exhausted or self._stopping) and not self._intake.items and not self._ended:
            self._ended = True
            if self._opening is not None:
                self._opening.cancel()  # nothing needs the device any more
            self._intake.close()
            self._intake.room.set()
            self._consumer.queue.put_nowait(None)
            self._unreported.put_nowait(None)

    # On the writer's thread:

    def _outcomes(self, finished: Sequence[tuple[OpenItem, Any]]) -> list[Outcome]:
        return [self._outcome(opened, value) for opened, value in finished]

    def _outcome(self, opened: OpenItem, value: Any) -> Outcome:
        result: Any = None
        artifacts: tuple[str, ...] = ()
        failure = value if isinstance(value, Failure) else None
        if failure is None:
            try:
                stored = store(self._output, opened.item.id, value)
                result, artifacts = stored.result, stored.artifacts
            except ItemError as error:
                failure = Failure(error.kind, error.message, error.traceback)
        return Outcome(
            id=opened.item.id,
            url=opened.item.url,
            status=Status.DONE if failure is None else Status.FAILED,
            bytes=opened.received_bytes,
            device=self._device.name,
            attempts=opened.tries,
            result=result,
            artifacts=artifacts,
            error=failure,
            seconds=Seconds(opened.receive.seconds, opened.land.seconds, opened.process.seconds),
            finished_at=timestamp(datetime.now(UTC)),
        )
