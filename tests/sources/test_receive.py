"""The contract of receiving, which both paths pass: in place and copied, on both loops, with and without TLS."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from origin import Origin, RawConnection, head, raw_server
from sources.wires import BODY, PIECE, SHORT_STALL_S, STALL_S, PiecewiseSink

from app.sources.receive import receive


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


def test_time_in_which_we_pause_is_no_stall(wire):
    async def scenario():
        async with Origin(wire.server_tls) as origin, wire.session() as session:
            sink = PiecewiseSink(len(BODY), piece=1 << 20, hold_s=2 * SHORT_STALL_S, holds=2)
            await wire.receive(await session.get(origin.put("/blob", BODY)), sink, len(BODY), stall_s=SHORT_STALL_S)
            assert sink.received == BODY

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
