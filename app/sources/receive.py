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

import aiohttp

from app.sources.sink import SERVER_PATIENCE_S, DroppedWhilePaused, Pauses, Sink, Stalled, Truncated

_LOG = logging.getLogger("gpufeed.receive")

# What reading from aiohttp's stream may raise. It counts two of these not among its client errors: a malformed chunk
# (HttpProcessingError), and a stream whose session has been closed (RuntimeError).
_AIOHTTP_ERRORS = (
    aiohttp.ClientError,
    aiohttp.http_exceptions.HttpProcessingError,
    RuntimeError,
    OSError,
    TimeoutError,
)


async def receive(
    response: aiohttp.ClientResponse,
    sink: Sink,
    length: int | None,
    *,
    stall_timeout_s: float,
    swap: bool = True,
    patience_s: float = SERVER_PATIENCE_S,
) -> None:
    """Receive the body of a response into the sink: just `length` bytes, or all there are where that is None.

    Whatever happens, what was given to `sink.advance` is in the sink, and nothing is written to its memory after
    this has returned or raised. After success the connection is back in the pool; after failure or cancellation it
    is aborted.

    Raises: Truncated, Stalled, DroppedWhilePaused.
    """
    pauses = Pauses(sink, patience_s)
    try:
        if swap and length is not None and _fits(response, length):
            await _receive_swapped(response, pauses, length, stall_timeout_s)
        else:
            await _receive_copied(response, pauses, length, stall_timeout_s)
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


def _swappable(response: aiohttp.ClientResponse) -> bool:
    """Whether aiohttp still has inside what the swap needs; the log says so once where it has not."""
    global _said
    connection = getattr(response, "connection", None)
    needed = [(response, "connection"), (response.content, "read_nowait"), (response.content, "feed_eof")]
    if connection is not None:
        needed += [(connection, "protocol"), (connection, "transport")]
    inner = getattr(connection, "protocol", None)
    if inner is not None:
        needed += [(inner, name) for name in ("read_timeout", "start_timeout", "eof_received", "connection_lost")]
    missing = [f"{type(owner).__name__}.{name}" for owner, name in needed if not hasattr(owner, name)]
    if missing and not _said:
        _said = True
        _LOG.warning("aiohttp %s has no %s: bodies are copied, not received in place", aiohttp.__version__, missing[0])
    return not missing


async def _receive_swapped(
    response: aiohttp.ClientResponse, pauses: Pauses, length: int, stall_timeout_s: float
) -> None:
    if not _swappable(response):
        return await _receive_copied(response, pauses, length, stall_timeout_s)
    connection = response.connection  # None where the whole body came with the head
    inner = connection.protocol if connection is not None else None
    if inner is not None:
        inner.read_timeout = None
        inner.start_timeout()  # with no timeout, this cancels the timer: ours takes over
    # From here to the swap nothing is awaited, so that no byte comes in between.
    came = _drain(response, pauses)
    left = length - sum(map(len, came))
    transport = connection.transport if connection is not None else None
    if not left:
        return await _copy(came, pauses)
    if inner is None or transport is None:
        raise pauses.broken(Truncated(f"{left} bytes are missing"))
    transport.pause_reading()
    receiver = _Receiver(transport, inner, pauses, left, stall_timeout_s)
    transport.set_protocol(receiver)
    try:
        await _copy(came, pauses)
        await receiver.run()
    finally:
        receiver.stop()
        transport.set_protocol(inner)
    if receiver.surplus:
        abort(response)  # what comes after the body would be taken for the answer to the next request
        return None
    response.content.feed_eof()  # resumes the transport, and releases the connection to the pool
    return None


def _drain(response: aiohttp.ClientResponse, pauses: Pauses) -> list[bytes]:
    """Take what came with the head, up to some hundred KiB; afterwards aiohttp holds no byte of the body."""
    try:
        return list(iter(response.content.read_nowait, b""))
    except _AIOHTTP_ERRORS as error:
        raise pauses.broken(error) from error


async def _copy(came: list[bytes], pauses: Pauses) -> None:
    for chunk in came:
        await pauses.copy(chunk)


async def _receive_copied(
    response: aiohttp.ClientResponse, pauses: Pauses, length: int | None, stall_timeout_s: float
) -> None:
    """Receive through aiohttp's stream. Its own read timeout does not do: it stops at a malformed chunk, which the
    stream is not told of, and reading from it would wait for ever (seen with 3.14.5)."""
    received, connection = 0, response.connection
    inner = connection.protocol if connection is not None else None
    transport = connection.transport if connection is not None else None
    while True:
        try:
            async with asyncio.timeout(stall_timeout_s):
                chunk = await response.content.readany()
        except _AIOHTTP_ERRORS as error:
            if isinstance(error, TimeoutError) and (response.connection is None or response.connection.closed):
                raise Truncated(f"the connection broke after {received} bytes") from error
            raise pauses.broken(error) from error
        if not chunk:
            break
        received += len(chunk)
        if length is not None and received > length:
            raise Truncated(f"the body is longer than the {length} bytes announced")
        await pauses.copy(chunk)
    if length is not None and received < length:
        raise Truncated(f"the body ended after {received} of {length} bytes")
    response.release()
    await asyncio.sleep(0)  # what the socket holds beyond the body shows now
    if transport is not None and (inner is None or inner.should_close):
        transport.abort()  # it would be taken for the answer to the next request


class _Receiver(asyncio.BufferedProtocol):
    """Stands in for aiohttp's protocol while a body comes in.

    Reading is paused whenever there is no memory for the next byte, so `get_buffer` never returns an empty one
    (uvloop takes that as fatal). `stop` puts it out of action: nothing reaches the sink afterwards.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        inner: aiohttp.client_proto.ResponseHandler,
        pauses: Pauses,
        length: int,
        stall_timeout_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._inner = inner
        self._pauses = pauses
        self._sink = pauses.sink
        self._left = length
        self._stall_timeout_s = stall_timeout_s
        self._view = memoryview(b"")
        self._paused = True
        self._error: Exception | None = None
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._progress_at_s = 0.0
        self.surplus = False  # bytes came after the last one

    async def run(self) -> None:
        """Receive until the last byte is in.

        Raises: Truncated, Stalled, DroppedWhilePaused.
        """
        self._progress_at_s = self._loop.time()
        self._check_stall()
        while self._left:
            view = self._sink.view()
            if view is None:
                await self._pauses.wait()
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
        await asyncio.sleep(0)  # what the socket holds beyond the body shows now, in the spare byte

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._view = memoryview(b"")
        if not self._paused:  # cancelled, or broken: the transport is about to be aborted
            self._pause()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if not self._left:
            self.surplus = True
            self._pause()
            return
        self._progress_at_s = self._loop.time()
        self._pauses.received(nbytes)
        self._left -= nbytes
        self._sink.advance(nbytes)
        if not self._left:
            self._view = memoryview(bytearray(1))
            self._awake()
            return
        view = self._sink.view()
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
        if self._error is None and self._left:  # what breaks after the last byte breaks nothing
            dropped = isinstance(error, Truncated) and self._pauses.too_long
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
