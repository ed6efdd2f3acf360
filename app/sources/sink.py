"""Where a body goes, and how its coming in may break off: no transport, no HTTP."""

from __future__ import annotations

import asyncio
from typing import Protocol

# A server may drop a connection that we left unread for this long; what the kernel had received before, at most this
# much (Linux caps a receive buffer at net.ipv4.tcp_rmem, 6 MiB by default), still comes before the end shows.
SERVER_PATIENCE_S = 1.0
_KERNEL_BUFFER_BYTES = 8 << 20


def first_line(error: BaseException) -> str:
    """What an error says, in one line and without the URL, which may hold a signature."""
    said = str(getattr(error, "message", "") or error).strip()
    return said.splitlines()[0].rstrip(":") if said else type(error).__name__


class Truncated(Exception):
    """The body ended, or the connection broke, before its last byte."""


class Stalled(Exception):
    """No byte came for the stall timeout, while we were reading."""


class DroppedWhilePaused(Exception):
    """The connection broke after we had left it unread: nobody's failure."""


class Sink(Protocol):
    """Where a body goes: memory, one piece after another."""

    def view(self) -> memoryview | None:
        """The memory for the next bytes, not empty; None while there is none."""

    def advance(self, count: int) -> None:
        """So many bytes of that memory are filled."""

    async def wait(self) -> None:
        """Return when `view` has memory. A cancelled wait takes none."""


class Pauses:
    """Waits for a sink's memory, and remembers whether that may be why a server dropped the connection."""

    def __init__(self, sink: Sink, patience_s: float) -> None:
        self.sink = sink
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._began_at_s: float | None = None  # of the pause that goes on
        self._since_long: int | None = None  # bytes since a pause that a server may not have borne

    async def wait(self) -> None:
        self._began_at_s = self._loop.time()
        try:
            await self.sink.wait()
        finally:
            if self._is_long():
                self._since_long = 0
            self._began_at_s = None

    def received(self, count: int) -> None:
        if self._since_long is not None:
            self._since_long += count

    @property
    def too_long(self) -> bool:
        """Whether a connection that breaks now may have been dropped because we left it unread."""
        return self._is_long() or (self._since_long is not None and self._since_long < _KERNEL_BUFFER_BYTES)

    def _is_long(self) -> bool:
        return self._began_at_s is not None and self._loop.time() - self._began_at_s >= self._patience_s

    async def copy(self, chunk: bytes) -> None:
        """Copy a chunk into the sink."""
        self.received(len(chunk))
        rest = memoryview(chunk)
        while rest:
            view = self.sink.view()
            if view is None:
                await self.wait()
                continue
            count = min(len(view), len(rest))
            view[:count] = rest[:count]
            self.sink.advance(count)
            rest = rest[count:]

    def broken(self, error: Exception) -> Exception:
        """What of aiohttp's went wrong, as one of ours."""
        if isinstance(error, TimeoutError):
            return Stalled("no byte came for the stall timeout")
        message = f"the connection broke: {first_line(error)}"
        return DroppedWhilePaused(message) if self.too_long else Truncated(message)
