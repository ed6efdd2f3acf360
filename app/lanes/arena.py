"""A lane's host memory: slabs for windows, and landings on the host.

Both are used again: receiving into fresh pages costs two to seven times the CPU of receiving into touched ones. Where
landings must be fresh, their pages are made on a thread beside the receiving one.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import heapq
import itertools
import logging
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

_LOG = logging.getLogger("gpufeed.arena")

_HUGE_BYTES = 2 << 20  # x86-64 and arm64 with 4 KiB pages
_LEAST_BYTES = 64 << 10
_PIECE_BYTES = 2 << 20  # while one is made, whoever asks the kernel for memory in this process waits
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14, which Python 3.11's mmap does not name
_madvise = ctypes.CDLL(None, use_errno=True).madvise  # unlike mmap's own it lets other threads run meanwhile
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Memory:
    """Address space whose pages come to be when they are touched."""

    capacity: int  # bytes
    touched: int = 0  # bytes at its start that have been handed out so far
    pinned: int = 0  # bytes at its start that are registered with CUDA
    outlived: bool = False  # something keeps the map until it is unregistered
    dropped: bool = False  # it counts no longer, and goes when the last reference to it does
    map: mmap.mmap = field(init=False)
    _references: int = field(init=False)  # to the map, as `held` counts them, while nobody else has any

    def __post_init__(self) -> None:
        self.map = mmap.mmap(-1, self.capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self.capacity >= _HUGE_BYTES:
            try:
                self.map.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages: only slower

        self._references = sys.getrefcount(self.map)

    def view(self, length: int) -> memoryview:
        """Its first bytes. Whoever holds a slice of it, or a tensor over it, shows in `held`."""
        return memoryview(self.map)[:length]

    def populate(self, start: int, stop: int) -> None:
        """Make the pages of these bytes, for a thread that has nothing else to do; does nothing where it cannot.

        It goes backwards, towards whoever receives into the same bytes from their start.
        """
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        while stop > start and not self.dropped:
            piece = max(start, stop - _PIECE_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
            if _madvise(address + piece, stop - piece, _POPULATE_WRITE):
                return  # an older kernel, or no memory: whoever touches the pages will see
            stop = piece

    def held(self) -> bool:
        """Whether somebody still refers to a view of it."""
        if sys.getrefcount(self.map) > self._references + self.outlived:
            gc.collect()  # a cycle may be all that holds it
        return sys.getrefcount(self.map) > self._references + self.outlived


@dataclass(slots=True, eq=False)
class Slab:
    """A fixed-size piece of host memory, which holds one window at a time."""

    memory: Memory
    view: memoryview  # the whole of it, kept so that receiving makes no more than slices


@dataclass(order=True, slots=True)
class _Waiter:
    rank: tuple[int, int]  # (the item's place in the lane, window)
    number: int
    granted: asyncio.Future[Slab] = field(compare=False)
    allowed: Callable[[], bool] = field(compare=False)

    def goes_before(self, rank: tuple[int, int]) -> bool:
        return self.rank < rank and not self.granted.done() and self.allowed()


class Slabs:
    """The lane's slabs: a hard bound on what is received and not yet consumed.

    Waiters are served in item order. A slab is granted only where `allowed` says so, which is asked again whenever
    one is released or `review` is called.
    """

    def __init__(self, count: int, slab_size: int) -> None:
        self.count = count
        self.slab_size = slab_size
        self._free: list[Slab] = []
        self._made = 0
        self._waiters: list[_Waiter] = []
        self._numbers = itertools.count()

    @property
    def in_use(self) -> int:
        return self._made - len(self._free)

    def acquire_nowait(self, rank: tuple[int, int], allowed: Callable[[], bool]) -> Slab | None:
        """A slab for that window, or None where it must wait for one."""
        if not allowed() or any(waiter.goes_before(rank) for waiter in self._waiters):
            return None
        return self._take()

    async def acquire(self, rank: tuple[int, int], allowed: Callable[[], bool]) -> Slab:
        """Wait for a slab for that window. Cancelled, it takes none."""
        slab = self.acquire_nowait(rank, allowed)
        if slab is not None:
            return slab
        waiter = _Waiter(rank, next(self._numbers), asyncio.get_running_loop().create_future(), allowed)
        heapq.heappush(self._waiters, waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.release(waiter.granted.result())
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
                heapq.heapify(self._waiters)
                self.review()
            raise

    def release(self, slab: Slab) -> None:
        """Give a slab back; the most recently touched is handed out first."""
        self._free.append(slab)
        self.review()

    def review(self) -> None:
        """Grant what can be granted now."""
        refused = []
        while self._waiters and (self._free or self._made < self.count):
            waiter = heapq.heappop(self._waiters)
            if waiter.granted.done():
                continue  # cancelled
            if waiter.allowed():
                slab = self._take()
                assert slab is not None
                waiter.granted.set_result(slab)
            else:
                refused.append(waiter)
        for waiter in refused:
            heapq.heappush(self._waiters, waiter)

    def _take(self) -> Slab | None:
        if self._free:
            return self._free.pop()
        if self._made >= self.count:
            return None
        self._made += 1
        memory = Memory(self.slab_size, touched=self.slab_size)
        return Slab(memory, memory.view(self.slab_size))


def size_class(length: int) -> int:
    """The capacity of memory for so many bytes: an eighth of a power of two, so that like sizes share memory."""
    if length <= _LEAST_BYTES:
        return _LEAST_BYTES
    step = 1 << max((length - 1).bit_length() - 4, 12)
    return -(-length // step) * step


def _leave(memory: Memory, start: int, stop: int) -> None:
    """Pages come to be when they are touched."""


class HostLandings:
    """Landings on the host, never more than `budget` bytes together; what is free is kept, and counts.

    `make_pages(memory, start, stop)` is told of fresh bytes in a landing that has been handed out.
    """

    def __init__(self, budget: int, make_pages: Callable[[Memory, int, int], object] = _leave) -> None:
        self.budget = budget
        self._make_pages = make_pages
        self._free: dict[int, list[Memory]] = {}
        self.used = 0  # bytes touched, of what is in use and of what is free

    def reserve(self, length: int) -> Memory | None:
        """Memory for so many bytes, or None while there is no room."""
        memory = self._reusable(length)
        if memory is None:
            memory = Memory(size_class(length))
        touched = memory.touched
        if self.grow(memory, length):
            if length - touched >= _HUGE_BYTES:
                self._make_pages(memory, touched, length)
            return memory
        self.release(memory)
        return None

    def open_ended(self) -> Memory:
        """Address space for an item of unknown length; `grow` it as its bytes arrive."""
        capacity = max(self.budget, _LEAST_BYTES)
        return self._pop(capacity) if capacity in self._free else Memory(capacity)

    def grow(self, memory: Memory, length: int) -> bool:
        """Count so many bytes at its start as touched; False while there is no room for that."""
        if length > memory.capacity:
            return False
        more = max(0, length - memory.touched)
        while self.used + more > self.budget and self._free:
            self._drop_one()
        if self.used + more > self.budget:
            return False
        memory.touched += more
        self.used += more
        return True

    def release(self, memory: Memory) -> None:
        """Take it back, to be reused; where a view of it is still held, it is left to the holder and replaced."""
        if memory.held():
            _LOG.warning(
                "a blob of %d bytes is still referred to after its processor returned: its memory is not reused;"
                " copy what must outlive the call",
                memory.touched,
            )
            self.used -= memory.touched
        else:
            self._free.setdefault(memory.capacity, []).append(memory)

    def _reusable(self, length: int) -> Memory | None:
        capacities = [capacity for capacity in self._free if length <= capacity <= max(2 * length, _LEAST_BYTES)]
        return self._pop(min(capacities)) if capacities else None

    def _drop_one(self) -> None:
        memory = self._pop(max(self._free))
        memory.dropped = True
        self.used -= memory.touched

    def _pop(self, capacity: int) -> Memory:
        memories = self._free[capacity]
        memory = memories.pop()
        if not memories:
            del self._free[capacity]
        return memory
