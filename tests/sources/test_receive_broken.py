"""The contract of receiving, where a body breaks off: both paths, both loops, with and without TLS."""

from __future__ import annotations

import asyncio

import pytest
from origin import Origin, RawConnection, head, raw_server
from sources.wires import BODY, PATIENCE_S, PIECE, SHORT_STALL_S, STALL_S, PiecewiseSink, WithheldSink

from app.sources.sink import DroppedWhilePaused, Stalled, Truncated


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


def test_what_a_server_sends_after_a_body_is_not_taken_for_the_next_answer(wire):
    foreign = b"X" * 1000
    asked = []

    async def script(client: RawConnection):
        while await client.request():
            asked.append(client)
            surplus = head(len(foreign)) + foreign if len(asked) == 1 else b""
            await client.say(head(len(BODY)) + BODY + surplus)

    async def scenario():
        async with raw_server(script, wire.server_tls) as server, wire.session() as session:
            for _ in range(2):
                sink = PiecewiseSink(len(BODY))
                await wire.receive(await session.get(server.url), sink, len(BODY))
                assert sink.received == BODY
            assert asked[0] is not asked[1]

    wire.run(scenario())
