"""One run: manifest → lanes → ledger.

The shutdown contract:

1. The manifest is exhausted: lanes drain, outcomes are committed, exports are written, the run returns.
2. The first SIGINT or SIGTERM: no new items; downloads of items not yet whole stop; the item on the device finishes
   and is committed; if that takes longer than `grace`, as 3.
3. The second signal: `leave` is called at once, in mid-air. The ledger is consistent anyway.
4. A line of the manifest is wrong: nothing further is claimed; what is on the device is finished and committed.
5. The ledger fails, or no device is left: the run raises RunError, and nothing is marked done that is not.
6. The device thread hangs: `leave` does not wait for it, as interpreter exit would.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import Kind, RunError, UsageError
from app.exports import write_results
from app.folder import move_aside
from app.items import Failure, Item, Outcome, Seconds, Status, timestamp
from app.lanes.gpus import find_devices
from app.lanes.inline import InlinePlacement
from app.lanes.lane import LaneSnapshot
from app.ledger import Counts, Ledger
from app.processors import Loaded, load
from app.reading import OpenManifest, Reading, ReadingSnapshot
from app.results import sweep
from app.settings import Settings
from app.sources.http import HttpSource

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = logging.getLogger("gpufeed.run")

CRASH_ATTEMPTS = 2  # an item that has cost so many devices is charged with it, and fails


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """What a run is doing; progress, metrics and pages read only this."""

    reading: ReadingSnapshot
    skipped: int  # items of the manifest with an outcome from before; known when the reading has ended
    done: int  # in this run, committed
    failed: Mapping[Kind, int]
    done_bytes: int  # of committed items
    received_bytes: int
    elapsed_s: float
    lanes: tuple[LaneSnapshot, ...]
    stopping: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended."""

    snapshot: RunSnapshot
    counts: Counts  # of the whole manifest, earlier runs included
    signalled: signal.Signals | None


class Run:
    """One manifest, one processor, one output folder."""

    def __init__(self, settings: Settings, leave: Callable[[signal.Signals], None]) -> None:
        self._settings = settings
        self._leave = leave
        self._output = Path(settings.output).absolute()  # wherever a processor may go
        self._ledger: Ledger
        self._reading: Reading | None = None
        self._placement: InlinePlacement | None = None
        self._given_back: deque[Item] = deque()
        self._charges: Counter[str] = Counter()
        self._outstanding = 0  # items that lanes have claimed and not reported
        self._gate_open = False
        self._read = False
        self._stopping = False
        self._signalled: signal.Signals | None = None
        self._changed = asyncio.Event()
        self._changes = 0
        self._skipped = 0
        self._done = self._done_bytes = 0
        self._failed: Counter[Kind] = Counter()
        self._started_at_s = time.monotonic()

    async def execute(self) -> Summary:
        """Do the run, or what is left of it.

        Raises: UsageError, RunError. Both, and a cancellation, leave everything committed that was reported.
        """
        settings = self._settings
        loaded, devices = await self._set_up()
        async with http_source(settings) as http:
            self._reading = Reading(settings, http)
            try:
                self._placement = InlinePlacement(settings, loaded, devices, self, http, self._output)
                opened = await self._reading.open()
                await self._open_ledger(loaded)
                async with self._ledger:
                    with self._signals():
                        try:
                            await self._work(opened)
                        except (UsageError, RunError):
                            with suppress(RunError):  # as far as it came
                                await self._write_results()
                            raise
                        await self._write_results()
                        return Summary(self.snapshot(), await self._ledger.counts(), self._signalled)
            finally:
                self._reading.close()

    def snapshot(self) -> RunSnapshot:
        lanes = self._placement.snapshot() if self._placement is not None else ()
        return RunSnapshot(
            reading=self._reading.snapshot() if self._reading else ReadingSnapshot(0, 0, 0, 0, ended=False),
            skipped=self._skipped,
            done=self._done,
            failed=dict(self._failed),
            done_bytes=self._done_bytes,
            received_bytes=sum(lane.received_bytes for lane in lanes),
            elapsed_s=time.monotonic() - self._started_at_s,
            lanes=lanes,
            stopping=self._stopping,
        )

    def stop(self) -> None:
        """Take no more items; what is on a device is finished and committed."""
        self._stopping = True
        if self._placement is not None:
            self._placement.stop()
        self._change()

    # The feed of its lanes:

    async def claim(self, limit: int) -> Sequence[Item]:
        while not self._stopping:
            changes = self._changes
            if self._given_back:
                items = [self._given_back.popleft() for _ in range(min(limit, len(self._given_back)))]
            else:
                items = await self._ledger.claim(limit) if self._gate_open else []
            if items:
                self._outstanding += len(items)
                return items
            if changes == self._changes:
                # Items in other lanes may still be given back.
                if self._read and not self._outstanding:
                    break
                await self._wait_for_change(changes)
        return []

    async def report(self, outcomes: Sequence[Outcome]) -> None:
        await self._ledger.record_all(outcomes)
        for outcome in outcomes:
            if outcome.error is None:
                self._done += 1
                self._done_bytes += outcome.bytes
            else:
                self._failed[outcome.error.kind] += 1
                kind = outcome.error.kind
                _LOG.warning("%s failed: %s: %s", outcome.id, kind, outcome.error.message, extra={"kind": kind})
        self._outstanding -= len(outcomes)
        if not self._outstanding:
            self._change()

    async def give_back(self, items: Sequence[Item], charged: str | None) -> None:
        given_up: list[Outcome] = []
        for item in items:
            self._charges[item.id] += item.id == charged
            if item.id == charged and self._charges[item.id] >= CRASH_ATTEMPTS:
                given_up.append(_lost_devices(item, self._charges[item.id]))
            else:
                self._given_back.append(item)
                self._outstanding -= 1
        self._change()
        if given_up:
            await self.report(given_up)

    def added(self) -> None:
        self._change()

    # Its parts:

    async def _set_up(self) -> tuple[Loaded, tuple[str, ...]]:
        """Load the processor and find the devices; either may import torch, for which the loop need not wait."""
        settings, loop = self._settings, asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="set-up")
        try:
            loaded = await loop.run_in_executor(thread, load, settings.processor, settings.processor_args, Path.cwd())
            return loaded, await loop.run_in_executor(thread, find_devices, settings.devices)
        finally:
            thread.shutdown(wait=False)  # cancelled, an import goes on

    async def _open_ledger(self, loaded: Loaded) -> None:
        if self._settings.fresh:
            aside = move_aside(self._output, datetime.now(UTC))
            if aside is not None:
                _LOG.info("the old output folder is now %s", aside)
        self._ledger = await Ledger.open(self._output, processor=loaded.spec, arguments=loaded.arguments)
        try:
            sweep(self._output)
            if self._settings.retry_failed:
                await self._ledger.retry_failed()
        except BaseException:
            await self._ledger.close()
            raise

    async def _work(self, opened: OpenManifest) -> None:
        """Read and process at once; a wrong line stops the claims, and is raised at the end."""
        assert self._placement is not None
        wrong: UsageError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read_manifest(opened))
                placed = group.create_task(self._placement.run())
                await asyncio.wait([placed])
                if self._stopping and not reading.done():
                    reading.cancel()  # it may wait for standard input
            wrong = None if reading.cancelled() else reading.result()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        if wrong is not None:
            raise wrong

    async def _read_manifest(self, opened: OpenManifest) -> UsageError | None:
        assert self._reading is not None
        self._gate_open = not opened.whole
        try:
            counts = await self._reading.into(self._ledger, opened, self)
        except UsageError as error:
            self.stop()
            return error
        self._skipped = counts.done + sum(counts.failed.values()) - self._done - sum(self._failed.values())
        self._gate_open = self._read = True
        self._change()
        duplicates = self._reading.snapshot().duplicates
        if duplicates:
            _LOG.info("lines of the manifest that repeat another: %d", duplicates)
        return None

    async def _write_results(self) -> None:
        thread = ThreadPoolExecutor(1, thread_name_prefix="export")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, write_results, self._output)
        finally:
            thread.shutdown(wait=False)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _signal(self, number: signal.Signals) -> None:
        if self._signalled is not None:
            self._leave(self._signalled)
            return
        self._signalled = number
        _LOG.info("%s: finishing what is on the device; once more leaves at once", number.name)
        asyncio.get_running_loop().call_later(self._settings.grace, self._leave, number)
        self.stop()

    def _change(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_change(self, changes: int) -> None:
        while changes == self._changes:
            await self._changed.wait()


def http_source(settings: Settings) -> HttpSource:
    """HTTP as the settings say."""
    return HttpSource(
        connect_timeout_s=settings.connect_timeout, stall_timeout_s=settings.stall_timeout, ca_file=settings.ca_file
    )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that the others followed from."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _lost_devices(item: Item, count: int) -> Outcome:
    return Outcome(
        id=item.id,
        url=item.url,
        status=Status.FAILED,
        bytes=0,
        device="",
        attempts=count,
        result=None,
        artifacts=(),
        error=Failure(Kind.DEVICE, f"the device was lost {count} times with this item on it"),
        seconds=Seconds(),
        finished_at=timestamp(datetime.now(UTC)),
    )
