"""The consuming half of a lane: it drains the queue of filled windows, lands them, and keeps the device busy.

Its queue also carries the ends of calls on the device's threads, so that one task decides everything, in order, and
waits for nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.errors import ItemError, Kind
from app.items import Failure
from app.lanes.device import Device
from app.lanes.intake import MOST_OPEN, Intake
from app.lanes.opened import OpenItem, State, Window
from app.lanes.steps import Begin, Copied, DeviceLost, Done, Failed, Finish, Process, Step, Update
from app.sources import StartOver

_MOST_STEPS = 64  # in one call: more would keep the device from what has arrived meanwhile
_CALL_S = 0.05  # what a call of several steps may take: its results come together, and a stop waits for all of it


@dataclass(frozen=True, slots=True)
class Called:
    """A device call has ended."""

    call: asyncio.Future[list[Done | Failed]]


@dataclass(frozen=True, slots=True)
class Landed:
    """A copy to the device has ended."""

    window: Window
    copy: asyncio.Future[Copied]


Event = Window | Called | Landed | None  # None: the end, put once


@dataclass(frozen=True, slots=True)
class Subject:
    """What a step of a call is about."""

    opened: OpenItem
    start: int  # as `Work.start`
    window: Window | None = None  # which the step consumes
    ends: bool = False  # its result is the item's


class Consumer:
    """One task; `finished` gets every item that the device is done with, `lost` the end of the device."""

    def __init__(
        self,
        device: Device,
        finished: Callable[[OpenItem, Any], None],
        lost: Callable[[DeviceLost], None],
    ) -> None:
        self._device = device
        self._finished = finished
        self._lost = lost
        self._intake: Intake
        self.queue: asyncio.Queue[Event]
        self._whole: deque[OpenItem] = deque()
        self._stream: OpenItem | None = None
        self._subjects: list[Subject] = []  # of the call that is under way
        self._calling = False
        self._most_steps = 1  # in the next call
        self.is_open = False  # whether the device may be called
        self.held_back = False  # too many results wait to be stored
        self.called_at_s = 0.0  # when the call that is under way began
        self.busy_s = 0.0  # in calls that have ended
        self.landing_s = 0.0

    def feed_from(self, intake: Intake) -> None:
        """Bind the receiving half. The queue holds every window there can be, so putting one never waits."""
        self._intake = intake
        intake.freed = self._wake_soon
        intake.dropped = self.drop
        plan = intake.plan
        windows = plan.slabs + plan.landing_bytes // plan.window_bytes + 2 * MOST_OPEN
        self.queue = asyncio.Queue(windows + plan.slabs + 4)

    def arrived(self, window: Window) -> None:
        self.queue.put_nowait(window)

    @property
    def on_device(self) -> OpenItem | None:
        """The item that the device is at, or the first of several."""
        return self._subjects[0].opened if self._subjects else None

    @property
    def calling(self) -> bool:
        return self._calling

    def wake(self) -> None:
        """Call the device if there is something for it; for whoever opens the device or frees memory."""
        self._call_device()

    def _wake_soon(self) -> None:
        """Room on the GPU may be what the next whole item waits for, and no event comes where a reader freed it."""
        if self._whole and not self._calling:
            asyncio.get_running_loop().call_soon(self._call_device)

    async def run(self) -> None:
        """Consume until the end."""
        while True:
            event = await self.queue.get()
            while event is not None:
                self._take(event)
                if self.queue.empty():
                    break
                event = self.queue.get_nowait()
            if event is None:
                return
            self._call_device()

    def drop(self, opened: OpenItem) -> None:
        """It has ended otherwise: nothing of it goes to the device any more."""
        if opened in self._whole:
            self._whole.remove(opened)
        if self._stream is opened:
            self._stream = None

    # Deciding:

    def _take(self, event: Window | Called | Landed) -> None:
        match event:
            case Window():
                self._take_window(event)
            case Called():
                self._take_results(event.call)
            case Landed():
                self._take_copy(event)

    def _take_window(self, window: Window) -> None:
        opened = window.opened
        if window.start != opened.starts or opened.state is not State.RECEIVING:
            self._release(window)
        elif self._intake.plan.streams:
            opened.windows[window.offset] = window
            self._intake.landed(opened, window.length)
        elif opened.landing is not None and window.slab is not None:
            opened.landing_windows += 1
            slab = window.slab
            copy = self._device.land(opened.landing, slab.view[: window.length], window.offset, slab.memory)
            copy.add_done_callback(lambda copy: self.queue.put_nowait(Landed(window, copy)))
        elif self._intake.landed(opened, window.length):
            self._whole.append(opened)

    def _take_copy(self, landed: Landed) -> None:
        opened = landed.window.opened
        self._release(landed.window)
        error = landed.copy.exception()
        if error is None:
            copied = landed.copy.result()
            opened.land.add(copied.began_at_s, copied.ended_at_s)
            self.landing_s += copied.ended_at_s - copied.began_at_s
            if self._intake.landed(opened, landed.window.length):
                self._whole.append(opened)
        elif isinstance(error, ItemError):
            self._take_no_room(opened, Failure(error.kind, error.message))
        elif isinstance(error, DeviceLost):
            self._lost(error)
        else:
            raise error
        self._intake.copied(opened)

    def _take_results(self, call: asyncio.Future[list[Done | Failed]]) -> None:
        self._calling = False
        subjects, self._subjects = self._subjects, []
        error = call.exception()
        if error is not None:
            for subject in subjects:
                self._release(subject.window)
            if not isinstance(error, DeviceLost):
                raise error
            self._lost(error)
            return
        results = call.result()
        self._most_steps = most_steps(sum(result.ended_at_s - result.began_at_s for result in results) / len(results))
        for subject, result in zip(subjects, results, strict=True):
            self._take_result(subject, result)

    def _take_result(self, subject: Subject, result: Done | Failed) -> None:
        opened, window = subject.opened, subject.window
        self.busy_s += result.ended_at_s - result.began_at_s
        self._release(window)
        # What was handed over before the item started over, or ended, does not count.
        if opened.state in (State.ENDED, State.RESTARTING) or subject.start != opened.starts:
            return
        opened.process.add(result.began_at_s, result.ended_at_s)
        if isinstance(result, Failed):
            self._take_failure(opened, result.failure)
        elif window is not None:
            opened.consumed_bytes += window.length
            self._intake.slabs.review()
        elif subject.ends:
            self._end(opened, result.value)

    def _take_failure(self, opened: OpenItem, failure: Failure) -> None:
        if self._intake.plan.streams and failure.kind is Kind.OUT_OF_MEMORY:
            self._take_no_room(opened, failure)
        else:
            self._end(opened, failure)

    def _take_no_room(self, opened: OpenItem, failure: Failure) -> None:
        """The device had no memory for it: once more from its start, then it fails."""
        if opened.retried_alone:
            self._intake.fail_item(opened, failure)
        else:
            opened.retried_alone = True
            self._intake.restart(opened, StartOver(failure.message, kind=Kind.OUT_OF_MEMORY))

    def _end(self, opened: OpenItem, outcome: Any) -> None:
        self.drop(opened)
        self._intake.end(opened)
        self._finished(opened, outcome)

    def _release(self, window: Window | None) -> None:
        if window is not None and window.slab is not None:
            self._intake.slabs.release(window.slab)

    # Acting:

    def _call_device(self) -> None:
        if self._calling or self.held_back or not self.is_open:
            return
        steps, subjects = self._stream_steps() if self._intake.plan.streams else self._whole_steps()
        if not steps:
            return
        self._calling, self._subjects, self.called_at_s = True, subjects, time.monotonic()
        call = self._device.call(steps)
        call.add_done_callback(lambda call: self.queue.put_nowait(Called(call)))

    def _whole_steps(self) -> tuple[list[Step], list[Subject]]:
        """The next whole item, or as many small ones as fill a window together."""
        steps: list[Step] = []
        subjects: list[Subject] = []
        size = 0
        for opened in list(self._whole):
            size += opened.size or 0
            if len(steps) >= self._most_steps or (steps and size > self._intake.plan.window_bytes):
                break
            if not self._intake.take_device_room(opened):
                continue  # those behind it may have what it waits for
            self._whole.remove(opened)
            opened.to(State.ON_DEVICE)
            steps.append(_process(opened))
            subjects.append(Subject(opened, opened.starts, ends=True))
        return steps, subjects

    def _stream_steps(self) -> tuple[list[Step], list[Subject]]:
        """The next windows of the stream that is on the device, in order, and of those behind it where it ends."""
        steps: list[Step] = []
        subjects: list[Subject] = []
        windows = max(1, self._intake.plan.slabs // 4)
        while len(steps) < self._most_steps and windows > 0:
            opened = self._stream or self._next_stream()
            if opened is None:
                break
            self._stream = opened
            if not opened.begun:
                opened.begun = True
                steps.append(Begin(opened.item))
                subjects.append(Subject(opened, opened.starts))
            while windows > 0 and len(steps) < self._most_steps:
                window = opened.windows.pop(opened.handed_bytes, None)
                if window is None:
                    break
                opened.handed_bytes += window.length
                if window.slab is None:
                    continue  # the empty window at the end of an empty body, or of one of unknown length
                windows -= 1
                view = window.slab.view[: window.length]
                steps.append(Update(opened.item, view, window.offset, window.slab.memory))
                subjects.append(Subject(opened, opened.starts, window))
            if opened.state is not State.WHOLE or opened.handed_bytes != opened.size:
                break
            opened.to(State.ON_DEVICE)
            steps.append(Finish(opened.item))
            subjects.append(Subject(opened, opened.starts, ends=True))
            self._stream = None
        return steps, subjects

    def _next_stream(self) -> OpenItem | None:
        """The oldest item, as soon as its first window is there; or one behind it that is here as a whole, which
        waits for nothing and so holds nobody up."""
        for place, opened in enumerate(self._intake.items):
            if opened.state is State.WHOLE or (place == 0 and 0 in opened.windows):
                return opened
        return None


def most_steps(step_s: float) -> int:
    """How many steps the next call has where one took so long on average in the last one."""
    return _MOST_STEPS if step_s * _MOST_STEPS <= _CALL_S else max(1, int(_CALL_S / step_s))


def _process(opened: OpenItem) -> Process:
    if opened.memory is not None:
        return Process(opened.item, opened.memory.view(opened.size or 0), opened.memory)
    assert opened.landing is not None
    return Process(opened.item, opened.landing.tensor, None)
