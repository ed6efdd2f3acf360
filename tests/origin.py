"""Servers on the loopback whose every answer is scripted: a polite one, and one that says raw bytes."""

from __future__ import annotations

import asyncio
import gzip
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

DEADLINE_S = 20  # of everything that a test awaits
_PIECE_BYTES = 256 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Blob:
    """What a path serves, and how; every field may be changed in mid-run."""

    body: bytes
    etag: str | None = '"one"'
    modified: str | None = "Mon, 01 Jan 2024 00:00:00 GMT"
    ranges: bool = True
    if_range: bool = True  # honour it
    chunked: bool = False
    gzipped: bool = False
    status: int | None = None  # answer this, always
    refusals: int = 0  # answer `refusal` so many times first
    refusal: int = 503
    retry_after: str | None = None
    location: str | None = None  # redirect there
    most: int | None = None  # a 206 has at most so many bytes
    content_range: str | None = None  # say this instead of the truth
    cut_after: int | None = None  # break the connection after so many bytes of a body …
    cuts: int = 1_000_000  # … so many times
    stall_after: int | None = None  # say nothing more after so many bytes of a body
    stalls: int = 1_000_000
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    path: str  # as it stood in the request line
    headers: dict[str, str]
    connection: tuple[str, int]  # the client's address
    range: tuple[int, int | None] | None  # first and last byte


class Origin:
    """A real aiohttp server on 127.0.0.1."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.blobs: dict[str, Blob] = {}
        self.asked: list[Asked] = []
        self.sent_bytes = 0
        self._tls = tls
        self._leaving = asyncio.Event()
        app = web.Application()
        app.router.add_route("GET", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.set()
        await self._runner.cleanup()

    def put(self, path: str, body: bytes, **behaviour: object) -> str:
        """Serve a blob; returns its URL."""
        self.blobs[path] = Blob(body, **behaviour)
        return self.url(path)

    def url(self, path: str) -> str:
        # "localhost" over TLS, so that there is a name to verify
        return f"https://localhost:{self.port}{path}" if self._tls else f"http://127.0.0.1:{self.port}{path}"

    @property
    def connections(self) -> int:
        """How many connections have asked for something so far."""
        return len({asked.connection for asked in self.asked})

    @property
    def open_connections(self) -> int:
        return len(self._runner.server.connections)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        found = _RANGE.fullmatch(request.headers.get("Range", ""))
        span = (int(found[1]), int(found[2]) if found[2] else None) if found else None
        peer = request.transport.get_extra_info("peername")[:2]
        self.asked.append(Asked(request.raw_path, dict(request.headers), peer, span))
        blob = self.blobs.get(request.path)
        if blob is None:
            return web.Response(status=404)
        if blob.refusals:
            blob.refusals -= 1
            return web.Response(status=blob.refusal, headers=_present({"Retry-After": blob.retry_after}))
        if blob.location is not None:
            return web.Response(status=302, headers={"Location": blob.location})
        if blob.status is not None:
            return web.Response(status=blob.status, text="no", headers=blob.headers)
        return await self._send(request, blob, span)

    async def _send(self, request: web.Request, blob: Blob, span: tuple[int, int | None] | None) -> web.StreamResponse:
        total, wanted = len(blob.body), request.headers.get("If-Range")
        same = wanted is None or not blob.if_range or wanted == blob.etag
        ranged = span is not None and blob.ranges and same
        start, last = span if span is not None and ranged else (0, None)
        if ranged and start >= total:
            return web.Response(status=416, text="none of that", headers={"Content-Range": f"bytes */{total}"})
        stop = total if last is None else min(last + 1, total)
        if ranged and blob.most is not None:
            stop = min(stop, start + blob.most)
        body = blob.body[start:stop]
        headers = {"ETag": blob.etag, "Last-Modified": blob.modified, **blob.headers}
        if ranged:
            headers["Content-Range"] = blob.content_range or f"bytes {start}-{stop - 1}/{total}"
        if blob.gzipped:
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        response = web.StreamResponse(status=206 if ranged else 200, headers=_present(headers))
        if blob.chunked:
            response.enable_chunked_encoding()
        else:
            response.content_length = len(body)
        await response.prepare(request)
        await self._send_body(request, response, blob, body)
        return response

    async def _send_body(self, request: web.Request, response: web.StreamResponse, blob: Blob, body: bytes) -> None:
        ends = [len(body)]
        if blob.cut_after is not None and blob.cuts and blob.cut_after < len(body):
            ends.append(blob.cut_after)
        if blob.stall_after is not None and blob.stalls and blob.stall_after < len(body):
            ends.append(blob.stall_after)
        end = min(ends)
        for start in range(0, end, _PIECE_BYTES):
            piece = body[start : min(start + _PIECE_BYTES, end)]
            await response.write(piece)
            self.sent_bytes += len(piece)
        if end == len(body):
            await response.write_eof()
        elif end == blob.cut_after:
            blob.cuts -= 1
            request.transport.close()  # what has been written still goes out
        else:
            blob.stalls -= 1
            await self._leaving.wait()


def _present(headers: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if value is not None}


Script = Callable[["RawConnection"], Awaitable[None]]


class RawConnection:
    """A client's connection in the hands of a test's script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self) -> str:
        """The head of the next request."""
        return (await self._reader.readuntil(b"\r\n\r\n")).decode()

    async def say(self, said: bytes) -> None:
        self._writer.write(said)
        await self._writer.drain()

    async def flood(self) -> None:
        """Send without end, until the client breaks the connection."""
        while True:
            await self.say(b"F" * _PIECE_BYTES)
            await asyncio.sleep(0)  # asyncio's TLS lets a writer to a lost connection go on without ever yielding

    async def gone(self) -> None:
        """Wait until the client has closed its end."""
        while await self._reader.read(_PIECE_BYTES):
            pass

    def reset(self) -> None:
        """Break the connection off without a goodbye."""
        self._writer.transport.abort()


class RawServer:
    """Runs a script for every connection, and closes it afterwards."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.connections = 0
        self._open = 0
        self._changed = asyncio.Condition()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open += 1
        try:
            await self._script(RawConnection(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client has gone
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except (OSError, ssl.SSLError):
                pass
            async with self._changed:
                self._open -= 1
                self._changed.notify_all()

    async def idle(self) -> None:
        """Wait until no connection is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._open)


@asynccontextmanager
async def raw_server(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    """A server on the loopback that does what the script says, byte for byte."""
    raw = RawServer(script)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    raw.url = f"https://localhost:{port}/" if tls else f"http://127.0.0.1:{port}/"
    try:
        yield raw
        async with asyncio.timeout(DEADLINE_S):
            await raw.idle()
    finally:
        server.close()


def head(length: int | None, *more: str, status: str = "200 OK") -> bytes:
    """A response's head."""
    lines = [f"HTTP/1.1 {status}", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
