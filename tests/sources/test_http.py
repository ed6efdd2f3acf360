"""The HTTP source against a scripted origin."""

from __future__ import annotations

import asyncio
import socket

import pytest
from origin import Origin, RawConnection, head, raw_server
from sources.receiving import Heap, fetch

from app.errors import ItemError, Kind, UsageError
from app.items import Item, Part
from app.sources import StartOver, TryAgain, Version
from app.sources.http import HttpSource, tls_context

BODY = bytes(range(256)) * 2000
SHORT_STALL_S = 0.1


@pytest.fixture(params=[True, False], ids=["in place", "copied"])
def swap(request):
    return request.param


def http(*, swap: bool = True, stall_timeout_s: float = 10.0, ca_file=None) -> HttpSource:
    ca_file = str(ca_file) if ca_file else None
    return HttpSource(connect_timeout_s=5.0, stall_timeout_s=stall_timeout_s, ca_file=ca_file, swap=swap)


def item(url: str, **fields) -> Item:
    return Item("a", url, **fields)


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


@pytest.mark.parametrize(("status", "kind"), [(403, Kind.FORBIDDEN), (404, Kind.NOT_FOUND), (418, Kind.HTTP_STATUS)])
async def test_a_refusal_fails_the_item_and_names_the_url_without_its_secrets(origin, status, kind):
    async with http() as source, asyncio.timeout(20):
        url = origin.put("/a", BODY, status=status)
        with pytest.raises(ItemError, match=rf"127\.0\.0\.1:{origin.port}/a\?sig=…: the server answered") as caught:
            await source.ask(item(f"{url}?sig=SECRET"), Part(0, 10), None)
        assert caught.value.kind is kind


async def test_a_coded_body_fails_the_item(origin):
    async with http() as source, asyncio.timeout(20):
        with pytest.raises(ItemError) as caught:
            await source.ask(item(origin.put("/a", BODY, gzipped=True)), Part(0, 10), None)
        assert caught.value.kind is Kind.ENCODING


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


async def test_a_redirect_to_another_origin_is_followed_without_the_items_headers(origin, swap):
    async with Origin() as other, http(swap=swap) as source, asyncio.timeout(20):
        origin.put("/a", b"", location="/b")
        origin.put("/b", b"", location=other.put("/c", BODY))
        one = item(origin.url("/a"), headers={"X-Key": "secret"})
        for part in (Part(0, 1000), Part(1000, 2000)):
            assert (await fetch(source, one, part))[1] == BODY[part.start : part.stop]
        assert ["X-Key" in asked.headers for asked in origin.asked] == [True] * 4  # resolved anew each time
        assert [("X-Key" in asked.headers, asked.range) for asked in other.asked] == [
            (False, (0, 999)),
            (False, (1000, 1999)),
        ]


async def test_redirects_in_a_circle_are_given_up(origin):
    async with http() as source, asyncio.timeout(20):
        origin.put("/a", b"", location="/b")
        origin.put("/b", b"", location="/a")
        with pytest.raises(ItemError, match="redirects") as caught:
            await source.ask(item(origin.url("/a")), None, None)
        assert caught.value.kind is Kind.REDIRECT


async def test_a_redirect_from_https_to_http_is_not_followed(origin, server_tls, ca_file):
    async with Origin(server_tls) as secure, http(ca_file=ca_file) as source, asyncio.timeout(20):
        url = secure.put("/a", b"", location=origin.put("/a", BODY))
        with pytest.raises(ItemError) as caught:
            await source.ask(item(url), None, None)
        assert caught.value.kind is Kind.REDIRECT
        assert not origin.asked


async def test_a_certificate_that_is_not_trusted_fails_the_item(server_tls):
    async with Origin(server_tls) as secure, http() as source, asyncio.timeout(20):
        with pytest.raises(ItemError) as caught:
            await source.ask(item(secure.put("/a", BODY)), None, None)
        assert caught.value.kind is Kind.TLS


async def test_over_tls_with_its_own_authority_the_item_is_received(server_tls, ca_file, swap):
    async with Origin(server_tls) as secure, http(ca_file=ca_file, swap=swap) as source, asyncio.timeout(20):
        one = item(secure.put("/a", BODY))
        for part in (Part(0, 300_000), Part(300_000, len(BODY))):
            assert (await fetch(source, one, part))[1] == BODY[part.start : part.stop]
        assert secure.connections == 1


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_ca_file_that_is_none_is_the_operators_to_mend(tmp_path, text):
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match="--ca-file"):
        tls_context(str(path))


async def test_a_port_where_nobody_listens_is_worth_another_try():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with http() as source, asyncio.timeout(20):
            with pytest.raises(TryAgain) as caught:
                await source.ask(item(f"http://127.0.0.1:{bound.getsockname()[1]}/a"), None, None)
            assert caught.value.kind is Kind.CONNECT


@pytest.mark.parametrize("said", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
async def test_an_answer_that_is_no_http_is_worth_another_try(said):
    async def script(client: RawConnection):
        await client.request()
        await client.say(said)

    async with asyncio.timeout(20), raw_server(script) as server, http() as source:
        with pytest.raises(TryAgain) as caught:
            await source.ask(item(server.url), None, None)
        assert caught.value.kind is Kind.CONNECT


@pytest.mark.parametrize("url", ["http://[::1", "http://h:port/", "http://h:99999/", "http:///path", "http://"])
async def test_a_url_that_cannot_be_asked_fails_the_item(url):
    async with http() as source, asyncio.timeout(20):
        with pytest.raises(ItemError) as caught:
            await source.ask(item(url), None, None)
        assert caught.value.kind is Kind.UNSUPPORTED


async def test_a_header_that_cannot_be_sent_fails_the_item(origin):
    async with http() as source, asyncio.timeout(20):
        with pytest.raises(ItemError) as caught:
            await source.ask(item(origin.put("/a", BODY), headers={"X": "a\r\nY: b"}), None, None)
        assert caught.value.kind is Kind.UNSUPPORTED
        assert not origin.asked


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
