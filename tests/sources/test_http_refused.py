"""What the HTTP source does not follow, believe or reach."""

from __future__ import annotations

import asyncio
import socket

import pytest
from origin import Origin, RawConnection, raw_server
from sources.asking import BODY, http, item
from sources.receiving import fetch

from app.errors import ItemError, Kind, UsageError
from app.items import Part
from app.sources import TryAgain
from app.sources.http import tls_context


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
        assert caught.value.kind is (Kind.HTTP_STATUS if said else Kind.CONNECT)
        assert "\n" not in caught.value.message


async def test_what_goes_wrong_is_said_without_the_values_of_the_query():
    async def script(client: RawConnection):
        await client.request()
        await client.say(b"nonsense\r\n\r\n")

    async with asyncio.timeout(20), raw_server(script) as server, http() as source:
        with pytest.raises(TryAgain) as caught:
            await source.ask(item(f"{server.url}?X-Amz-Signature=SECRET"), None, None)
        assert "SECRET" not in caught.value.message
        assert "X-Amz-Signature=…" in caught.value.message


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
