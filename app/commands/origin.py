"""A small origin on this machine, on a thread of its own, with blobs that are made as they are sent."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

_TILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """So many bytes, a tile over and over."""

    size: int
    tile: bytes


def generate(size: int, bits: int, seed: int) -> Blob:
    """A blob whose bytes take 2**bits values evenly, so that its entropy is `bits` a byte; always the same for a seed.

    Sizes are whole MiB.
    """
    kept = bytes(value & ((1 << bits) - 1) for value in range(256))
    return Blob(size, random.Random(seed).randbytes(_TILE_BYTES).translate(kept))


class Origin:
    """Serves blobs on the loopback interface while its block lasts; what it does not have is a 404."""

    def __init__(self, blobs: Mapping[str, Blob]) -> None:
        self._blobs = blobs
        self._port: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="origin", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._port.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._port.result()}/{name}"

    # On its thread:

    def _serve(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:
            if self._port.done():
                raise
            self._port.set_exception(error)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        application = web.Application()
        application.router.add_get("/{name}", self._send)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._port.set_result(runner.addresses[0][1])
            await self._stop.wait()
        finally:
            await runner.cleanup()

    async def _send(self, request: web.Request) -> web.StreamResponse:
        blob = self._blobs.get(request.match_info["name"])
        if blob is None:
            raise web.HTTPNotFound
        wanted = request.http_range
        start, stop, _ = wanted.indices(blob.size)
        if wanted.start is not None and start >= stop:
            raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{blob.size}"})
        response = web.StreamResponse(status=200 if wanted.start is None else 206)
        response.content_length = stop - start
        response.headers["Accept-Ranges"] = "bytes"
        if response.status == 206:
            response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
        await response.prepare(request)
        tile = memoryview(blob.tile)
        while start < stop:
            at = start % len(tile)
            piece = tile[at : at + stop - start]
            await response.write(piece)
            start += len(piece)
        await response.write_eof()
        return response
