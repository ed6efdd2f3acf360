"""The HTTP source against a scripted origin."""

from __future__ import annotations

import asyncio

import pytest
from origin import Origin, RawConnection, head, raw_server
from sources.asking import BODY, SHORT_STALL_S, http, item
from sources.receiving import Heap, fetch

from app.errors import ItemError, Kind
from app.items import Part
from app.sources import StartOver, TryAgain, Version


async def test_the_first_ranged_get_tells_all_there_is_to_know(origin, swap):
    async with http(swap=swap) as source, asyncio.timeout(20):
        one = item(origin.put("/a", BODY))
        answer, received = await fetch(source, one, Part(0, 1000))
        assert (answer.start, answer.length, answer.ranges) == (0, 1000, True)
        assert answer.version == Version(len(BODY), '"one"', "Mon, 01 Jan 2024 00:00:00 GMT")
        assert received == BODY[:1000]
        assert [asked.headers["Accept-Encoding"] for asked in origin.asked] == ["identity"]


async def test_parts_make_up_the_item_over_one_connection(origin, swap):
    async with http(swap=swap) as source, asyncio.timeout(20):
        one, known, whole = item(origin.put("/a", BODY)), None, b""
        for start in range(0, len(BODY), 100_000):
            answer, received = await fetch(source, one, Part(start, start + 100_000), known)
            known, whole = known or answer.version, whole + received
        assert whole == BODY
        assert origin.connections == 1
        assert [asked.headers.get("If-Range") for asked in origin.asked] == [None] + ['"one"'] * 5


async def test_a_server_without_ranges_sends_the_whole_body_to_the_first(origin, swap):
    async with http(swap=swap) as source, asyncio.timeout(20):
        one = item(origin.put("/a", BODY, ranges=False))
        answer, received = await fetch(source, one, Part(0, 1000))
        assert (answer.length, answer.ranges) == (len(BODY), False)
        assert received == BODY
        with pytest.raises(StartOver) as caught:
            await source.ask(one, Part(1000, 2000), answer.version)
        assert caught.value.whole


async def test_a_body_of_unknown_length_is_received_to_its_end(origin, swap):
    async with http(swap=swap) as source, asyncio.timeout(20):
        answer, received = await fetch(source, item(origin.put("/a", BODY, chunked=True, ranges=False)), None)
        assert (answer.length, answer.version.total) == (None, None)
        assert received == BODY


@pytest.mark.parametrize("ranges", [True, False])
async def test_an_empty_item_is_received_though_a_range_on_it_gives_416(origin, swap, ranges):
    async with http(swap=swap) as source, asyncio.timeout(20):
        one = item(origin.put("/a", b"", ranges=ranges))
        for part in (Part(0, 1000), None):
            answer, received = await fetch(source, one, part)
            assert (answer.length, answer.version.total, received) == (0, 0, b"")


async def test_a_short_206_gives_what_it_gives(origin, swap):
    async with http(swap=swap) as source, asyncio.timeout(20):
        answer, received = await fetch(source, item(origin.put("/a", BODY, most=300)), Part(100, 1000))
        assert (answer.start, answer.length, received) == (100, 300, BODY[100:400])


async def test_a_lying_content_range_fails_the_item(origin):
    async with http() as source, asyncio.timeout(20):
        one = item(origin.put("/a", BODY, content_range="bytes 0-99/500"))
        with pytest.raises(ItemError, match="asked for bytes 100-199") as caught:
            await source.ask(one, Part(100, 200), None)
        assert caught.value.kind is Kind.RANGE


@pytest.mark.parametrize("if_range", [True, False], ids=["honoured", "ignored"])
async def test_a_change_in_flight_starts_the_item_over_whether_if_range_is(origin, if_range):
    async with http() as source, asyncio.timeout(20):
        one = item(origin.put("/a", BODY, if_range=if_range))
        answer, _ = await fetch(source, one, Part(0, 1000))
        origin.put("/a", BODY[::-1], etag='"two"', if_range=if_range)
        with pytest.raises(StartOver, match="changed") as caught:
            await source.ask(one, Part(1000, 2000), answer.version)
        assert not caught.value.whole
        _, received = await fetch(source, one, Part(0, 1000))
        assert received == BODY[::-1][:1000]


@pytest.mark.parametrize("etag", [None, 'W/"one"'])
async def test_without_a_strong_etag_the_date_and_the_size_tell_versions_apart(origin, etag):
    async with http() as source, asyncio.timeout(20):
        one = item(origin.put("/a", BODY, etag=etag))
        answer, _ = await fetch(source, one, Part(0, 1000))
        await fetch(source, one, Part(1000, 2000), answer.version)
        origin.put("/a", BODY, etag=etag, modified="Tue, 02 Jan 2024 00:00:00 GMT")
        with pytest.raises(StartOver, match="Last-Modified"):
            await source.ask(one, Part(2000, 3000), answer.version)
        origin.put("/a", BODY[:-1], etag=etag)
        with pytest.raises(StartOver, match="size"):
            await source.ask(one, Part(2000, 3000), answer.version)
        assert not any("If-Range" in asked.headers for asked in origin.asked)


async def test_a_cut_body_is_worth_another_try_and_what_came_stays(origin, swap):
    async with http(swap=swap) as source, asyncio.timeout(20):
        one = item(origin.put("/a", BODY, cut_after=300_000, cuts=1))
        reply, sink = await source.ask(one, Part(0, len(BODY)), None), Heap(len(BODY))
        with pytest.raises(TryAgain, match=r"missing|broke") as caught:
            await reply.receive(sink)
        assert (caught.value.kind, caught.value.charged) == (Kind.TRUNCATED, True)
        _, rest = await fetch(source, one, Part(sink.position, len(BODY)), reply.answer.version)
        assert sink.received + rest == BODY


async def test_a_stalled_body_is_a_timeout(origin, swap):
    async with http(swap=swap, stall_timeout_s=SHORT_STALL_S) as source, asyncio.timeout(20):
        reply = await source.ask(item(origin.put("/a", BODY, stall_after=1000)), None, None)
        with pytest.raises(TryAgain, match="no byte came") as caught:
            await reply.receive(Heap(len(BODY)))
        assert caught.value.kind is Kind.TIMEOUT


async def test_no_answer_is_a_timeout():
    async def script(client: RawConnection):
        await client.request()
        await client.gone()

    async with (
        asyncio.timeout(20),
        raw_server(script) as server,
        http(stall_timeout_s=SHORT_STALL_S) as source,
    ):
        with pytest.raises(TryAgain) as caught:
            await source.ask(item(server.url), None, None)
        assert caught.value.kind is Kind.TIMEOUT


async def test_a_503_is_worth_another_try_after_the_time_it_names(origin):
    async with http() as source, asyncio.timeout(20):
        one = item(origin.put("/a", BODY, refusals=1, retry_after="3"))
        with pytest.raises(TryAgain, match="503") as caught:
            await source.ask(one, None, None)
        assert caught.value.after_s == 3.0
        assert (await fetch(source, one))[1] == BODY


async def test_an_items_headers_are_sent_with_every_request(origin):
    async with http() as source, asyncio.timeout(20):
        one = item(origin.put("/a", BODY), headers={"Authorization": "Bearer s"})
        for part in (Part(0, 10), Part(10, 20)):
            await fetch(source, one, part)
        assert [asked.headers["Authorization"] for asked in origin.asked] == ["Bearer s"] * 2


async def test_a_url_goes_out_byte_for_byte(origin):
    async with http() as source, asyncio.timeout(20):
        path = "/a%2Fb/%7Ec+d?x=%20%2f&y=a+b&z="
        with pytest.raises(ItemError):
            await source.ask(item(origin.url(path)), None, None)
        assert [asked.path for asked in origin.asked] == [path]


async def test_over_tls_with_its_own_authority_the_item_is_received(server_tls, ca_file, swap):
    async with Origin(server_tls) as secure, http(ca_file=ca_file, swap=swap) as source, asyncio.timeout(20):
        one = item(secure.put("/a", BODY))
        for part in (Part(0, 300_000), Part(300_000, len(BODY))):
            assert (await fetch(source, one, part))[1] == BODY[part.start : part.stop]
        assert secure.connections == 1


async def test_a_reply_that_is_abandoned_gives_its_connection_up():
    async def script(client: RawConnection):
        await client.request()
        await client.say(head(1 << 40))
        await client.flood()

    async with asyncio.timeout(20), raw_server(script) as server, http() as source:
        reply = await source.ask(item(server.url), None, None)
        await reply.abandon()
        await server.idle()


async def test_a_cancelled_request_gives_its_connection_up():
    asked = asyncio.Event()

    async def script(client: RawConnection):
        await client.request()
        asked.set()
        await client.gone()

    async with asyncio.timeout(20), raw_server(script) as server, http() as source:
        task = asyncio.create_task(source.ask(item(server.url), None, None))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.idle()
