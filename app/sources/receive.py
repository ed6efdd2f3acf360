"""Socket → slab; the only file that touches a transport.

A response's body is received by one of two paths, under the same contract:

* *swap*: once aiohttp has read the head, the transport's protocol is swapped for a `BufferedProtocol`, so that the
  kernel (or OpenSSL) writes straight into the sink's memory, and swapped back after the last byte, so that the
  connection returns to aiohttp's pool. It needs a body of known length in no coding.
* *copy*: aiohttp's stream, copied into the sink. It serves everything else.

Neither counts time in which it is we who do not read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import aiohttp

_LOG = logging.getLogger("gpufeed.receive")

# A server may drop a connection that we left unread for this long; what the kernel had received before, at most this
# much (Linux caps a receive buffer at net.ipv4.tcp_rmem, 6 MiB by default), still comes before the end shows.
_PATIENCE_S = 1.0
_KERNEL_BUFFER_BYTES = 8 << 20


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


async def receive(
    response: aiohttp.ClientResponse, sink: Sink, length: int | None, *, stall_timeout_s: float, swap: bool = True
) -> None:
    """Receive the body of a response into the sink: just `length` bytes, or all there are where that is None.

    Whatever happens, what was given to `sink.advance` is in the sink, and nothing is written to its memory after
    this has returned or raised. After success the connection is back in the pool; after failure or cancellation it
    is aborted.

    Raises: Truncated, Stalled, DroppedWhilePaused; aiohttp.ClientError for a malformed coding.
    """
    try:
        if swap and length is not None and _fits(response, length):
            await _receive_swapped(response, sink, length, stall_timeout_s)
        else:
            await _receive_copied(response, sink, length)
    except BaseException:
        abort(response)
        raise


def abort(response: aiohttp.ClientResponse) -> None:
    """Give up a response at once. Closing would let TLS go on downloading for up to 30 s (uvloop#471)."""
    connection = response.connection
    transport = connection.transport if connection is not None else None
    if transport is not None:
        transport.abort()
    response.close()


def _fits(response: aiohttp.ClientResponse, length: int) -> bool:
    """Whether this body can be received in place: its length is known and no coding is between."""
    headers = response.headers
    if "Transfer-Encoding" in headers or headers.get("Content-Length") != str(length):
        return False
    return headers.get("Content-Encoding", "identity").lower() == "identity"


_said = False


def _internals_changed(missing: str) -> None:
    global _said
    if not _said:
        _said = True
        _LOG.warning("aiohttp %s has no %s: bodies are copied, not received in place", aiohttp.__version__, missing)


async def _receive_swapped(response: aiohttp.ClientResponse, sink: Sink, length: int, stall_timeout_s: float) -> None:
    connection = response.connection  # None where the whole body came with the head
    inner = connection.protocol if connection is not None else None
    if inner is not None:
        for name in ("read_timeout", "start_timeout", "connection_lost", "eof_received"):
            if not hasattr(inner, name):
                _internals_changed(f"ResponseHandler.{name}")
                return await _receive_copied(response, sink, length)
        inner.read_timeout = None
        inner.start_timeout()  # with no timeout, this cancels the timer: ours takes over
    left = length - await _drain(response, sink)
    if not left:
        return None
    transport = connection.transport if connection is not None else None
    if inner is None or transport is None:
        raise Truncated(f"the connection ended with {left} bytes missing")
    # From the last drained byte up to here nothing has been awaited, so none can have come in between.
    transport.pause_reading()
    receiver = _Receiver(transport, inner, sink, left, stall_timeout_s)
    transport.set_protocol(receiver)
    try:
        await receiver.run()
    finally:
        receiver.stop()
        transport.set_protocol(inner)
    response.content.feed_eof()  # resumes the transport, and releases the connection to the pool
    return None


async def _drain(response: aiohttp.ClientResponse, sink: Sink) -> int:
    """Copy what came with the head; afterwards aiohttp holds no byte of the body, and nothing was awaited since."""
    drained = 0
    try:
        while chunk := response.content.read_nowait():
            rest = memoryview(chunk)
            while rest:
                view = sink.view()
                if view is None:
                    await sink.wait()
                    continue
                count = min(len(view), len(rest))
                view[:count] = rest[:count]
                sink.advance(count)
                drained += count
                rest = rest[count:]
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _broken(error) from error
    return drained


async def _receive_copied(response: aiohttp.ClientResponse, sink: Sink, length: int | None) -> None:
    """Receive through aiohttp's stream. Its read timeout is the stall timeout: it stops while the stream is full."""
    loop, received, since_pause, longest_pause_s = asyncio.get_running_loop(), 0, 0, 0.0
    try:
        while chunk := await response.content.readany():
            rest = memoryview(chunk)
            received += len(rest)
            since_pause += len(rest)
            if length is not None and received > length:
                raise Truncated(f"the body is longer than the {length} bytes announced")
            while rest:
                view = sink.view()
                if view is None:
                    paused_at_s, since_pause = loop.time(), 0
                    await sink.wait()
                    longest_pause_s = max(longest_pause_s, loop.time() - paused_at_s)
                    continue
                count = min(len(view), len(rest))
                view[:count] = rest[:count]
                sink.advance(count)
                rest = rest[count:]
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        if longest_pause_s >= _PATIENCE_S and since_pause < _KERNEL_BUFFER_BYTES:
            raise DroppedWhilePaused from error
        raise _broken(error) from error
    if length is not None and received < length:
        raise Truncated(f"the body ended after {received} of {length} bytes")
    response.release()


def _broken(error: Exception) -> Exception:
    if isinstance(error, TimeoutError):
        return Stalled("no byte came for the stall timeout")
    return Truncated(f"the connection broke: {error or type(error).__name__}")


class _Receiver(asyncio.BufferedProtocol):
    """Stands in for aiohttp's protocol while a body comes in.

    Reading is paused whenever there is no memory for the next byte, so `get_buffer` never returns an empty one
    (uvloop takes that as fatal). `stop` puts it out of action: nothing reaches the sink afterwards.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        inner: aiohttp.client_proto.ResponseHandler,
        sink: Sink,
        length: int,
        stall_timeout_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._inner = inner
        self._sink = sink
        self._left = length
        self._stall_timeout_s = stall_timeout_s
        self._view = memoryview(b"")
        self._paused = True
        self._error: Exception | None = None
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._progress_at_s = 0.0
        self._longest_pause_s = 0.0
        self._since_pause = 0  # bytes

    async def run(self) -> None:
        """Receive until the last byte is in.

        Raises: Truncated, Stalled, DroppedWhilePaused.
        """
        self._progress_at_s = self._loop.time()
        self._check_stall()
        while self._left:
            view = self._sink.view()
            if view is None:
                paused_at_s = self._loop.time()
                await self._sink.wait()
                self._longest_pause_s = max(self._longest_pause_s, self._loop.time() - paused_at_s)
                self._since_pause = 0
                continue
            if self._error is not None:
                raise self._error
            self._view = view[: self._left]
            self._wake = self._loop.create_future()
            self._progress_at_s = self._loop.time()
            self._paused = False
            self._transport.resume_reading()
            await self._wake
            if self._error is not None:
                raise self._error

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._view = memoryview(b"")
        if not self._paused:  # cancelled, or broken: the transport is about to be aborted
            self._pause()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._progress_at_s = self._loop.time()
        self._since_pause += nbytes
        self._left -= nbytes
        self._sink.advance(nbytes)
        view = self._sink.view() if self._left else None
        if view is None:
            self._pause()
            self._awake()
        else:
            self._view = view if len(view) <= self._left else view[: self._left]

    def eof_received(self) -> bool | None:
        self._fail(Truncated(f"the connection was closed with {self._left} bytes missing"))
        self._inner.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        reason = exc or "closed"
        self._fail(Truncated(f"the connection broke with {self._left} bytes missing: {reason}"))
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _pause(self) -> None:
        self._paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            ours = self._longest_pause_s >= _PATIENCE_S and self._since_pause < _KERNEL_BUFFER_BYTES
            dropped = isinstance(error, Truncated) and (ours or self._paused)
            self._error = DroppedWhilePaused(str(error)) if dropped else error
        self._awake()

    def _check_stall(self) -> None:
        now_s = self._loop.time()
        if self._paused:
            self._progress_at_s = now_s
        left_s = self._progress_at_s + self._stall_timeout_s - now_s
        if left_s <= 0:
            self._fail(Stalled(f"no byte came for {self._stall_timeout_s:g} s, with {self._left} bytes missing"))
        else:
            self._timer = self._loop.call_later(left_s, self._check_stall)
