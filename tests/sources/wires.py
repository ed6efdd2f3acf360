"""The ways of the bytes that receiving is tested on, and sinks for them."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from loops import run_to_its_end

from app.sources.receive import receive

STALL_S = 5.0
SHORT_STALL_S = 0.1
PATIENCE_S = 0.03
PIECE = 64 << 10
UNTOUCHED = b"\xaa"
BODY = random.Random(1).randbytes((5 << 20) + 12345)


class PiecewiseSink:
    """Memory that is granted a piece at a time, each only after a wait; `hold_s` makes the first ones long."""

    def __init__(self, size: int, piece: int = PIECE, hold_s: float = 0.0, holds: int = 0) -> None:
        self.memory = bytearray(UNTOUCHED * size)
        self.position = 0
        self.waits = 0
        self.advanced: Callable[[], None] = lambda: None
        self._piece = piece
        self._hold_s = hold_s
        self._holds = holds
        self._granted = 0

    def view(self) -> memoryview | None:
        return memoryview(self.memory)[self.position : self._granted] if self.position < self._granted else None

    def advance(self, count: int) -> None:
        assert 0 < count <= self._granted - self.position
        self.position += count
        self.advanced()

    async def wait(self) -> None:
        assert self._granted < len(self.memory), "there is no room for more bytes than the body has"
        self.waits += 1
        granted = asyncio.Event()
        asyncio.get_running_loop().call_later(self._hold_s if self.waits <= self._holds else 0.0, granted.set)
        await granted.wait()
        self._granted = min(self._granted + self._piece, len(self.memory))

    @property
    def received(self) -> bytes:
        return bytes(self.memory[: self.position])

    def is_untouched_after_what_came(self) -> bool:
        return not bytes(self.memory[self.position :]).strip(UNTOUCHED)


class WithheldSink(PiecewiseSink):
    """Grants one piece, and then none until it is told to."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def wait(self) -> None:
        if self._granted:
            self.asked.set()
            await self.released.wait()
        await super().wait()


@dataclass(frozen=True)
class Wire:
    """One way of the bytes: by which loop, path and cable."""

    loop: str
    server_tls: ssl.SSLContext | None
    client_tls: ssl.SSLContext | None
    swap: bool

    def run(self, coroutine):
        return run_to_its_end(coroutine, self.loop)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.client_tls or True),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=STALL_S),
            auto_decompress=False,
        ) as session:
            yield session

    async def receive(self, response, sink, length, *, stall_s: float = STALL_S, patience_s: float = 60.0) -> None:
        await receive(response, sink, length, stall_timeout_s=stall_s, swap=self.swap, patience_s=patience_s)
