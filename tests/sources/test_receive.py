"""The contract of receiving, which both paths pass: in place and copied, on both loops, with and without TLS."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from conftest import LOOPS, run_to_its_end
from origin import Origin, RawConnection, head, raw_server

from app.sources.receive import receive
from app.sources.sink import DroppedWhilePaused, Stalled, Truncated

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


@pytest.fixture(
    params=list(itertools.product(LOOPS, ("plain", "tls"), ("in place", "copied"))), ids=lambda param: "-".join(param)
)
def wire(request, server_tls, ca_file) -> Wire:
    loop, cable, path = request.param
    client_tls = ssl.create_default_context(cafile=ca_file)
    if cable == "plain":
        return Wire(loop, None, None, path == "in place")
    return Wire(loop, server_tls, client_tls, path == "in place")


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, len(BODY)])
def test_the_sink_holds_the_body_to_the_byte(wire, size):
    async def scenario():
        async with Origin(wire.server_tls) as origin, wire.session() as session:
            url = origin.put("/blob", BODY[:size])
            sink = PiecewiseSink(size)
            await wire.receive(await session.get(url), sink, size)
            assert sink.received == BODY[:size]
            assert sink.waits == -(-size // PIECE)

    wire.run(scenario())


@pytest.mark.parametrize("piece", [1000, 8 << 20])
def test_pieces_of_any_size_are_filled_one_after_another(wire, piece):
    async def scenario():
        body = BODY[: 1 << 20]
        async with Origin(wire.server_tls) as origin, wire.session() as session:
            sink = PiecewiseSink(len(body), piece)
            await wire.receive(await session.get(origin.put("/blob", body)), sink, len(body))
            assert sink.received == body

    wire.run(scenario())


@pytest.mark.parametrize("size", [1, 5000])
def test_a_body_that_comes_with_the_head_is_received(wire, size):
    async def script(client: RawConnection):
        for _ in range(2):
            await client.request()
            await client.say(head(size) + BODY[:size])
        await client.gone()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            for _ in range(2):
                sink = PiecewiseSink(size, piece=999)
                await wire.receive(await session.get(server.url), sink, size)
                assert sink.received == BODY[:size]
            assert server.connections == 1

    wire.run(scenario())


def test_a_body_of_no_announced_length_is_received_to_its_end(wire):
    async def scenario():
        async with Origin(wire.server_tls) as origin, wire.session() as session:
            url = origin.put("/blob", BODY, chunked=True)
            for _ in range(2):
                sink = PiecewiseSink(len(BODY))
                await wire.receive(await session.get(url), sink, None)
                assert sink.received == BODY
            assert origin.connections == 1

    wire.run(scenario())


def test_parts_over_one_connection_make_one_connection(wire):
    async def scenario():
        async with Origin(wire.server_tls) as origin, wire.session() as session:
            url, size = origin.put("/blob", BODY), 1 << 20
            for start in range(0, 5 * size, size):
                headers = {"Range": f"bytes={start}-{start + size - 1}"}
                sink = PiecewiseSink(size)
                await wire.receive(await session.get(url, headers=headers), sink, size)
                assert sink.received == BODY[start : start + size]
            async with session.get(url) as response:
                assert await response.read() == BODY
            assert (origin.connections, len(origin.asked)) == (1, 6)

    wire.run(scenario())


def test_a_truncated_body_is_said_and_what_came_of_it_is_right(wire):
    async def scenario():
        async with Origin(wire.server_tls) as origin, wire.session() as session:
            sink = PiecewiseSink(len(BODY))
            response = await session.get(origin.put("/blob", BODY, cut_after=3 << 20))
            with pytest.raises(Truncated):
                await wire.receive(response, sink, len(BODY))
            assert 0 < sink.position <= 3 << 20
            assert sink.received == BODY[: sink.position]
            assert sink.is_untouched_after_what_came()

    wire.run(scenario())


@pytest.mark.parametrize("sent", [0, 1, 20_000])
def test_a_server_that_closes_right_after_the_start_of_a_body_has_truncated_it(wire, sent):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(1 << 20) + BODY[:sent])

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink = PiecewiseSink(1 << 20)
            with pytest.raises(Truncated):
                await wire.receive(await session.get(server.url), sink, 1 << 20)
            assert sink.received == BODY[: sink.position]

    wire.run(scenario())


def test_a_server_that_closes_right_after_the_last_byte_has_sent_it_all(wire):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(len(BODY), "Connection: close"))
        await client.say(BODY)

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            for _ in range(3):
                sink = PiecewiseSink(len(BODY))
                await wire.receive(await session.get(server.url), sink, len(BODY))
                assert sink.received == BODY
            assert server.connections == 3

    wire.run(scenario())


def test_a_connection_that_is_reset_in_mid_body_is_said(wire):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(len(BODY)) + BODY[: 1 << 20])
        client.reset()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink = PiecewiseSink(len(BODY))
            with pytest.raises(Truncated):
                await wire.receive(await session.get(server.url), sink, len(BODY))
            assert sink.received == BODY[: sink.position]
            assert sink.is_untouched_after_what_came()

    wire.run(scenario())


@pytest.mark.parametrize("sent", [0, 1000, 1 << 20])
def test_a_server_that_says_nothing_more_has_stalled(wire, sent):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(len(BODY)) + BODY[:sent])
        await client.gone()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink = PiecewiseSink(len(BODY))
            with pytest.raises(Stalled):
                await wire.receive(await session.get(server.url), sink, len(BODY), stall_s=SHORT_STALL_S)
            assert sink.received == BODY[:sent]
            assert sink.is_untouched_after_what_came()
            await server.idle()  # the connection has been given up

    wire.run(scenario())


def test_time_in_which_we_pause_is_no_stall(wire):
    async def scenario():
        async with Origin(wire.server_tls) as origin, wire.session() as session:
            sink = PiecewiseSink(len(BODY), piece=1 << 20, hold_s=2 * SHORT_STALL_S, holds=2)
            await wire.receive(await session.get(origin.put("/blob", BODY)), sink, len(BODY), stall_s=SHORT_STALL_S)
            assert sink.received == BODY

    wire.run(scenario())


@pytest.mark.parametrize("sent", [1000, 1 << 20])
@pytest.mark.parametrize("end", ["closed", "reset"])
def test_a_connection_dropped_because_we_paused_is_nobodys_failure(wire, sent, end):
    dropping = asyncio.Event()

    async def script(client: RawConnection):
        await client.request()
        await client.say(head(len(BODY)) + BODY[: PIECE + sent])
        await dropping.wait()
        if end == "reset":
            client.reset()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink = WithheldSink(len(BODY))
            task = asyncio.create_task(
                wire.receive(await session.get(server.url), sink, len(BODY), patience_s=PATIENCE_S)
            )
            await sink.asked.wait()
            asyncio.get_running_loop().call_later(2 * PATIENCE_S, dropping.set)
            asyncio.get_running_loop().call_later(3 * PATIENCE_S, sink.released.set)
            with pytest.raises(DroppedWhilePaused, match=r"."):
                await task
            assert sink.received == BODY[: sink.position]

    wire.run(scenario())


def test_a_connection_dropped_in_a_pause_too_short_to_be_why_is_truncated(wire):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(len(BODY)) + BODY[:1000])

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink = PiecewiseSink(len(BODY), piece=500)
            with pytest.raises(Truncated):
                await wire.receive(await session.get(server.url), sink, len(BODY))
            assert sink.received == BODY[: sink.position]

    wire.run(scenario())


def test_a_cancelled_receive_writes_nothing_more_and_gives_its_connection_up(wire):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(1 << 40))
        await client.flood()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink, enough = PiecewiseSink(8 << 20), asyncio.Event()
            sink.advanced = lambda: sink.position > 1 << 20 and enough.set()
            task = asyncio.create_task(wire.receive(await session.get(server.url), sink, 1 << 40))
            await enough.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            position = sink.position
            await server.idle()  # the server, which sent all the time, has lost its connection
            assert sink.position == position
            assert sink.is_untouched_after_what_came()
            assert sink.received == b"F" * position

    wire.run(scenario())


def test_a_receive_cancelled_while_it_waits_for_memory_writes_nothing_more(wire):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(1 << 40))
        await client.flood()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink = WithheldSink(8 << 20)
            task = asyncio.create_task(wire.receive(await session.get(server.url), sink, 1 << 40))
            await sink.asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.idle()
            assert sink.position == PIECE
            assert sink.is_untouched_after_what_came()

    wire.run(scenario())


def test_after_a_failure_the_next_request_gets_a_connection_that_works(wire):
    async def scenario():
        async with Origin(wire.server_tls) as origin, wire.session() as session:
            url = origin.put("/blob", BODY, cut_after=1 << 20, cuts=1, stall_after=2 << 20, stalls=1)
            for error, stall_s in ((Truncated, STALL_S), (Stalled, SHORT_STALL_S)):
                with pytest.raises(error):
                    await wire.receive(await session.get(url), PiecewiseSink(len(BODY)), len(BODY), stall_s=stall_s)
            for _ in range(3):
                sink = PiecewiseSink(len(BODY))
                await wire.receive(await session.get(url), sink, len(BODY))
                assert sink.received == BODY
            assert origin.connections == 3

    wire.run(scenario())


def test_bytes_after_the_body_are_none_of_it(wire):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(1 << 20) + BODY[: 1 << 20] + b"and more of the same, which nobody has asked for")
        await client.gone()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink = PiecewiseSink(1 << 20, piece=100_000)
            await wire.receive(await session.get(server.url), sink, 1 << 20)
            assert sink.received == BODY[: 1 << 20]

    wire.run(scenario())


def test_a_malformed_chunk_breaks_a_body_off(wire):
    begun = asyncio.Event()

    async def script(client: RawConnection):
        await client.request()
        await client.say(head(None, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n")
        await begun.wait()
        await client.say(b"no number\r\n")
        await client.gone()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            sink = PiecewiseSink(1000)
            sink.advanced = begun.set
            with pytest.raises(Truncated):
                await wire.receive(await session.get(server.url), sink, None, stall_s=SHORT_STALL_S)
            assert sink.received == b"hello"

    wire.run(scenario())


def test_a_chunked_body_without_its_end_is_truncated(wire):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(None, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n")

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            with pytest.raises(Truncated):
                await wire.receive(await session.get(server.url), PiecewiseSink(1000), None)

    wire.run(scenario())


def test_a_session_closed_in_mid_body_breaks_it_off(wire):
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(1 << 40))
        await client.flood()

    async def scenario():
        async with raw_server(script, wire.server_tls) as server:
            async with wire.session() as session:
                sink = WithheldSink(8 << 20)
                task = asyncio.create_task(wire.receive(await session.get(server.url), sink, 1 << 40))
                await sink.asked.wait()
            sink.released.set()
            with pytest.raises((Truncated, DroppedWhilePaused)):
                await task
            assert sink.is_untouched_after_what_came()

    wire.run(scenario())


class Without:
    """What is wrapped, as it would be if it had lost an attribute."""

    def __init__(self, wrapped: object, lost: str, **replaced: object) -> None:
        self._wrapped, self._lost, self._replaced = wrapped, lost, replaced

    def __getattr__(self, name: str) -> object:
        if name == self._lost:
            raise AttributeError(name)
        return self._replaced[name] if name in self._replaced else getattr(self._wrapped, name)


def test_in_place_aiohttps_protocol_is_away_while_the_body_comes_in_and_back_afterwards(run_on):
    async def scenario():
        async with Origin() as origin, aiohttp.ClientSession() as session:
            response = await session.get(origin.put("/blob", BODY))
            transport, seen = response.connection.transport, set()
            before = transport.get_protocol()
            sink = PiecewiseSink(len(BODY))
            sink.advanced = lambda: seen.add(isinstance(transport.get_protocol(), asyncio.BufferedProtocol))
            await receive(response, sink, len(BODY), stall_timeout_s=STALL_S)
            assert True in seen
            assert transport.get_protocol() is before
            assert sink.received == BODY

    run_on(scenario())


@pytest.mark.parametrize("lost", ["content", "protocol"])
def test_without_what_it_needs_of_aiohttp_the_body_is_copied(run_on, lost, caplog):
    async def scenario():
        async with Origin() as origin, aiohttp.ClientSession() as session:
            response = await session.get(origin.put("/blob", BODY))
            if lost == "content":
                changed = Without(response, "", content=Without(response.content, "read_nowait"))
            else:
                protocol = Without(response.connection.protocol, "start_timeout")
                changed = Without(response, "", connection=Without(response.connection, "", protocol=protocol))
            transport, seen = response.connection.transport, set()
            sink = PiecewiseSink(len(BODY))
            sink.advanced = lambda: seen.add(isinstance(transport.get_protocol(), asyncio.BufferedProtocol))
            await receive(changed, sink, len(BODY), stall_timeout_s=STALL_S)
            assert sink.received == BODY
            assert seen == {False}

    run_on(scenario())
    assert len([record for record in caplog.records if record.name == "gpufeed.receive"]) <= 1
