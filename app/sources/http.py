"""Parts of items over HTTP: pure functions decide what a reply means, and the coroutine acts."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from yarl import URL

from app.errors import ItemError, Kind, UsageError
from app.items import Item, Part
from app.sources import Answer, Reply, StartOver, TryAgain, Version
from app.sources.receive import abort, receive
from app.sources.retry import RETRIED_STATUSES, retry_after_s
from app.sources.sink import DroppedWhilePaused, Sink, Stalled, Truncated, first_line

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 10
# No number is longer than 18 digits: that is an exabyte, and Python refuses to read thousands of them.
_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18}|\*)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*[0-9]{1,18}\s*")
_OURS = frozenset({"accept-encoding", "range", "if-range"})  # headers that no item can set
_GIVEN_UP = {401: Kind.FORBIDDEN, 403: Kind.FORBIDDEN, 404: Kind.NOT_FOUND, 410: Kind.NOT_FOUND}


def request_headers(item: Item, part: Part | None, known: Version | None) -> dict[str, str]:
    """Headers to ask for a part (None: the whole body), pinned to the version that is known."""
    headers = {name: value for name, value in item.headers.items() if name.lower() not in _OURS}
    headers["Accept-Encoding"] = "identity"
    if part is not None:
        headers["Range"] = f"bytes={part.start}-{part.stop - 1}"
        if known is not None and known.strong is not None:
            headers["If-Range"] = known.strong
    return headers


def judge(status: int, headers: Mapping[str, str], part: Part | None, known: Version | None, now: datetime) -> Answer:
    """What a reply to that request means.

    Raises: TryAgain, StartOver, ItemError, each with what came and what was asked for.
    """
    if status not in (200, 206, 416):
        raise _refused(status, headers, now)
    coding = headers.get("Content-Encoding", "identity").lower()
    if coding != "identity":
        raise ItemError(Kind.ENCODING, f"the server sent the body coded as {coding}, though asked for identity")
    match status:
        case 416:
            answer = _unsatisfied(headers, part)
        case 206:
            answer = _partial(headers, part)
        case _:
            answer = _whole(headers)
    if known is not None:
        reason = known.differs(answer.version)
        if reason is not None:
            raise StartOver(f"the item changed while it was fetched: {reason}")
    if part is not None and part.start and answer.start == 0 and status == 200:
        raise StartOver("the server answered a range with the whole body", whole=True, kind=Kind.TRUNCATED)
    return answer


def _whole(headers: Mapping[str, str]) -> Answer:
    chunked = "Transfer-Encoding" in headers
    length = None if chunked else _number(headers.get("Content-Length"))
    return Answer(0, length, _version(headers, length), ranges=False)


def _partial(headers: Mapping[str, str], part: Part | None) -> Answer:
    said = headers.get("Content-Range", "")
    found = _CONTENT_RANGE.fullmatch(said.strip())
    if part is None or found is None or found[1] is None:
        raise ItemError(Kind.RANGE, f"the server sent a 206 that is no single byte range: Content-Range {said!r}")
    start, last, total = int(found[1]), int(found[2]), None if found[3] == "*" else int(found[3])
    length = last - start + 1
    stop = part.stop if total is None else min(part.stop, total)
    announced = _number(headers.get("Content-Length"))
    if start != part.start or length < 1 or last >= stop or announced not in (None, length):
        raise ItemError(
            Kind.RANGE,
            f"asked for bytes {part.start}-{part.stop - 1}, the server sent Content-Range {said!r}"
            f" with Content-Length {announced}",
        )
    return Answer(start, length, _version(headers, total), ranges=True)


def _unsatisfied(headers: Mapping[str, str], part: Part | None) -> Answer:
    """A 416: an empty item gives it to every range; otherwise it contradicts what is known."""
    said = headers.get("Content-Range", "")
    found = _CONTENT_RANGE.fullmatch(said.strip())
    total = int(found[3]) if found is not None and found[3] != "*" else None
    if total == 0 and part is not None and part.start == 0:
        return Answer(0, 0, _version(headers, 0), ranges=True)
    if total is not None:
        raise StartOver(f"the server has only {total} bytes")
    raise ItemError(Kind.RANGE, f"the server refused the range with 416 and Content-Range {said!r}")


def _refused(status: int, headers: Mapping[str, str], now: datetime) -> Exception:
    if status == 412:
        return StartOver("the item changed while it was fetched: 412 Precondition Failed")
    message = f"the server answered {status}"
    if status in RETRIED_STATUSES:
        return TryAgain(Kind.HTTP_STATUS, message, after_s=retry_after_s(headers.get("Retry-After"), now))
    return ItemError(_GIVEN_UP.get(status, Kind.HTTP_STATUS), message)


def _version(headers: Mapping[str, str], total: int | None) -> Version:
    etag = headers.get("ETag")
    # A weak ETag pins nothing (RFC 9110, 13.1.5).
    strong = etag if etag is not None and etag.startswith('"') else None
    return Version(total, strong, headers.get("Last-Modified"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def redirected(url: URL, location: str | None, headers: Mapping[str, str], item: Item) -> tuple[URL, dict[str, str]]:
    """Where a redirect leads, and the headers to send there: those of the item never cross to another origin.

    Raises: ItemError for a redirect that is not followed.
    """
    if not location:
        raise ItemError(Kind.REDIRECT, "a redirect without Location")
    try:
        there = url.join(URL(location, encoded=True))
        crossed = _origin(there) != _origin(url)  # ValueError where the port is none
    except ValueError:
        raise ItemError(Kind.REDIRECT, f"a redirect to {shown(location)!r}, which is no URL") from None
    if there.scheme not in ("http", "https") or (url.scheme == "https" and there.scheme == "http"):
        raise ItemError(Kind.REDIRECT, f"a redirect from {url.scheme} to {there.scheme} is not followed")
    if not crossed:
        return there, dict(headers)
    own = {name.lower() for name in item.headers} - _OURS
    return there, {name: value for name, value in headers.items() if name.lower() not in own}


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    return url.scheme, url.host, url.port


def shown(url: str) -> str:
    """A URL fit for messages: without credentials, and without the values of its query, which may be a signature."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    netloc = parts.netloc.rpartition("@")[2]
    query = re.sub(r"(?<![^&])(?:([^&=]*=)[^&]*|[^&]+)", r"\1…", parts.query)
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A response whose head has been read and believed."""

    answer: Answer
    response: aiohttp.ClientResponse
    url: str
    stall_timeout_s: float
    swap: bool

    async def receive(self, sink: Sink) -> None:
        if self.answer.length == 0:
            self.response.release()  # a body that comes all the same, as with a 416, is not the item's
            return
        try:
            await receive(self.response, sink, self.answer.length, stall_timeout_s=self.stall_timeout_s, swap=self.swap)
        except DroppedWhilePaused as error:
            raise TryAgain(Kind.TRUNCATED, f"{self.url}: {error}", charged=False) from error
        except Truncated as error:
            raise TryAgain(Kind.TRUNCATED, f"{self.url}: {error}") from error
        except Stalled as error:
            raise TryAgain(Kind.TIMEOUT, f"{self.url}: {error}") from error

    async def abandon(self) -> None:
        abort(self.response)


class HttpSource:
    """http:// and https:// by aiohttp. Its connections are kept and used again."""

    def __init__(
        self, *, connect_timeout_s: float, stall_timeout_s: float, ca_file: str | None = None, swap: bool = True
    ) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=stall_timeout_s)
        self._ssl = tls_context(ca_file)
        self._swap = swap
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            requote_redirect_url=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, item: Item, part: Part | None, known: Version | None) -> Reply:
        """Ask for a part of an item, or with None for its whole body.

        Raises: TryAgain, StartOver, ItemError. When cancelled, the connection is aborted.
        """
        assert item.url is not None
        url = shown(item.url)
        if part is not None and not len(part):
            part = None
        try:
            response = await self._get(item, request_headers(item, part, known))
        except (ItemError, TryAgain) as error:
            raise _named(error, url) from error.__cause__
        try:
            answer = judge(response.status, response.headers, part, known, datetime.now(UTC))
        except (ItemError, TryAgain, StartOver) as error:
            abort(response)
            raise _named(error, url) from None
        return HttpReply(answer, response, url, self._stall_timeout_s, self._swap)

    async def _get(self, item: Item, headers: dict[str, str]) -> aiohttp.ClientResponse:
        assert self._session is not None
        try:
            url = URL(item.url or "", encoded=True)
        except ValueError as error:
            raise _translated(error) from error
        for _ in range(_MOST_REDIRECTS):
            try:
                response = await self._session.get(url, headers=headers, allow_redirects=False)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _translated(error) from error
            if response.status not in _REDIRECTS:
                return response
            abort(response)
            url, headers = redirected(url, response.headers.get("Location"), headers, item)
        raise ItemError(Kind.REDIRECT, f"more than {_MOST_REDIRECTS} redirects")


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Certificates are verified, against this file or else against the system's.

    Raises: UsageError where the file holds no certificates.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca-file {ca_file!r} cannot be used: {error}") from error


def _translated(error: Exception) -> Exception:
    """An error of aiohttp as one of ours."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return ItemError(Kind.TLS, first_line(error))
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError | ValueError):
        return ItemError(Kind.UNSUPPORTED, "not a URL that can be asked")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return TryAgain(Kind.CONNECT, "no connection in time")
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return TryAgain(Kind.TIMEOUT, "no answer for the stall timeout")
    if isinstance(error, aiohttp.ClientConnectorError):
        return TryAgain(Kind.CONNECT, f"no connection to {error.host}:{error.port}: {error.os_error.strerror or error}")
    if isinstance(error, aiohttp.ClientResponseError):
        return TryAgain(Kind.HTTP_STATUS, f"a malformed answer: {first_line(error)}")
    return TryAgain(Kind.CONNECT, first_line(error))


def _named(error: ItemError | TryAgain | StartOver, url: str) -> Exception:
    """The same error, saying which URL."""
    match error:
        case ItemError():
            return ItemError(error.kind, f"{url}: {error.message}")
        case TryAgain():
            return TryAgain(error.kind, f"{url}: {error.message}", after_s=error.after_s, charged=error.charged)
        case _:
            return StartOver(f"{url}: {error}", whole=error.whole, kind=error.kind)
