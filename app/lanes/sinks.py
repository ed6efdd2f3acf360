"""Where the bytes of a part go: into the item's landing on the host, or into slabs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from app.errors import ItemError, Kind
from app.lanes.arena import HostLandings, Memory, Slab, Slabs
from app.lanes.opened import OpenItem, Window
from app.sources.sink import Sink

Arrived = Callable[[Window], None]


class PartSink(Sink, Protocol):
    """A sink for the bytes of one part."""

    position: int  # the item's byte that comes next

    def end(self) -> None:
        """The part has ended well: its last window has arrived, which no earlier moment knows."""

    def give_up(self) -> None:
        """Give back what was taken and has not arrived."""


def longer(opened: OpenItem, stop: int) -> ItemError:
    return ItemError(Kind.INTEGRITY, f"{opened.item.id}: its source sends more than the {stop} bytes it should")


class LandingSink:
    """Bytes are received into the landing itself, whose room has been reserved."""

    def __init__(
        self, opened: OpenItem, memory: memoryview, start: int, stop: int, window_bytes: int, arrived: Arrived
    ) -> None:
        self.position = start
        self._opened = opened
        self._start = opened.starts
        self._memory = memory
        self._stop = stop
        self._window_bytes = window_bytes
        self._arrived = arrived
        self._window = start  # where the window that is being filled starts
        self._window_stop = min((start // window_bytes + 1) * window_bytes, stop)

    def view(self) -> memoryview | None:
        return self._memory[self.position : self._window_stop] if self.position < self._stop else None

    async def wait(self) -> None:
        raise longer(self._opened, self._stop)

    def advance(self, count: int) -> None:
        self.position += count
        self._opened.received_bytes += count
        if self.position == self._window_stop < self._stop:
            self._emit()

    def end(self) -> None:
        if self.position > self._window or self._stop == 0:
            self._emit()

    def give_up(self) -> None:
        self._memory = memoryview(b"")

    def _emit(self) -> None:
        window = Window(self._opened, self._start, self._window, self.position - self._window, None)
        self._window = self.position
        self._window_stop = min(self._window + self._window_bytes, self._stop)
        self._arrived(window)


class GrowingSink:
    """Bytes of an item of unknown length, received into a landing that is given room as they come."""

    def __init__(
        self,
        opened: OpenItem,
        landings: HostLandings,
        memory: Memory,
        window_bytes: int,
        arrived: Arrived,
        room: Callable[[OpenItem, int], Awaitable[None]],
    ) -> None:
        self.position = 0
        self._opened = opened
        self._start = opened.starts
        self._landings = landings
        self._memory = memory
        self._view = memory.view(memory.capacity)
        self._room_bytes = 0
        self._window_bytes = window_bytes
        self._arrived = arrived
        self._wait_for_room = room

    def view(self) -> memoryview | None:
        if self.position == self._room_bytes and not self._grow():
            return None
        return self._view[self.position : self._room_bytes]

    async def wait(self) -> None:
        """Return when the lane has room for another window. Raises: ItemError when it never will have."""
        while self.position == self._room_bytes and not self._grow():
            await self._wait_for_room(self._opened, self._room_bytes + self._window_bytes)

    def advance(self, count: int) -> None:
        self.position += count
        self._opened.received_bytes += count

    def end(self) -> None:
        self._opened.size = self.position
        self._arrived(Window(self._opened, self._start, 0, self.position, None))

    def give_up(self) -> None:
        self._view = memoryview(b"")

    def _grow(self) -> bool:
        room = min(self._room_bytes + self._window_bytes, self._memory.capacity)
        if room == self._room_bytes or not self._landings.grow(self._memory, room):
            return False
        self._room_bytes = room
        return True


class SlabSink:
    """Bytes are received into slabs, a window each, which travel on to the consumer."""

    def __init__(
        self,
        opened: OpenItem,
        slabs: Slabs,
        start: int,
        stop: int | None,
        arrived: Arrived,
        allowed: Callable[[OpenItem, int], bool],
    ) -> None:
        self.position = start
        self._opened = opened
        self._start = opened.starts
        self._slabs = slabs
        self._stop = stop
        self._arrived = arrived
        self._allowed = allowed
        self._slab: Slab | None = None
        self._window = start

    def view(self) -> memoryview | None:
        if self._stop is not None and self.position >= self._stop:
            return None
        if self._slab is None:
            self._slab = self._slabs.acquire_nowait(self._rank, self._may)
            if self._slab is None:
                return None
        stop = self._slabs.slab_size if self._stop is None else self._stop - self._window
        return self._slab.view[self.position - self._window : stop]

    async def wait(self) -> None:
        if self._stop is not None and self.position >= self._stop:
            raise longer(self._opened, self._stop)
        if self._slab is None:
            self._slab = await self._slabs.acquire(self._rank, self._may)

    def advance(self, count: int) -> None:
        self.position += count
        self._opened.received_bytes += count
        if self.position - self._window == self._slabs.slab_size and self.position != self._stop:
            self._emit()

    def end(self) -> None:
        if self._stop is None:
            self._opened.size = self.position
        if self.position > self._window or self._stop in (None, 0):
            self._emit()  # for a stream of unknown length also where it is empty: the consumer waits for its end

    def give_up(self) -> None:
        if self._slab is not None:
            slab, self._slab = self._slab, None
            self._slabs.release(slab)

    @property
    def _rank(self) -> tuple[int, int]:
        return self._opened.order, self.position // self._slabs.slab_size

    def _may(self) -> bool:
        return self._allowed(self._opened, self.position // self._slabs.slab_size)

    def _emit(self) -> None:
        slab, self._slab = self._slab, None
        if slab is not None and self.position == self._window:
            self._slabs.release(slab)  # a body of unknown length ended where a window does
            slab = None
        window = Window(self._opened, self._start, self._window, self.position - self._window, slab)
        self._window = self.position
        self._arrived(window)
