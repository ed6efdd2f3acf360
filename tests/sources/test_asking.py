"""What is asked, where redirects lead, and what messages show: pure, without a socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from app.errors import ItemError, Kind
from app.items import Item, Part
from app.sources import Version
from app.sources.http import redirected, request_headers, shown

ONE = Version(1000, '"one"', "Mon, 01 Jan 2024 00:00:00 GMT")
ITEM = Item("a", "https://example.org/a", headers={"Authorization": "Bearer s", "X-Key": "k"})


def test_a_request_for_a_part_is_pinned_to_the_version_that_is_known():
    headers = request_headers(ITEM, Part(100, 200), ONE)
    assert headers["Range"] == "bytes=100-199"
    assert headers["If-Range"] == '"one"'
    assert headers["Accept-Encoding"] == "identity"
    assert headers["Authorization"] == "Bearer s"


@pytest.mark.parametrize("known", [None, Version(1000), Version(1000, None, "Mon, 01 Jan 2024 00:00:00 GMT")])
def test_without_a_strong_etag_nothing_is_pinned(known):
    assert "If-Range" not in request_headers(ITEM, Part(0, 10), known)


def test_a_request_for_the_whole_body_has_no_range():
    headers = request_headers(ITEM, None, ONE)
    assert not {"Range", "If-Range"} & set(headers)


def test_an_items_headers_do_not_replace_those_that_receiving_rests_on():
    item = Item("a", "http://h/", headers={"accept-encoding": "gzip", "RANGE": "bytes=0-1", "if-range": '"x"'})
    assert request_headers(item, None, None) == {"Accept-Encoding": "identity"}
    assert request_headers(item, Part(5, 6), None) == {"Accept-Encoding": "identity", "Range": "bytes=5-5"}


# Redirects:


@pytest.mark.parametrize(
    ("location", "there"),
    [
        ("/b?x=1%2F2", "https://example.org/b?x=1%2F2"),
        ("b", "https://example.org/b"),
        ("https://example.org:443/c", "https://example.org/c"),
    ],
)
def test_a_redirect_within_the_origin_keeps_the_headers(location, there):
    headers = request_headers(ITEM, Part(0, 10), None)
    url, sent = redirected(URL(ITEM.url), location, headers, ITEM)
    assert str(url) == there
    assert sent == headers


@pytest.mark.parametrize(
    "location",
    ["https://other.org/a", "//other.org/a", "https://example.org:8443/a", "https://sub.example.org/a"],
)
def test_credentials_never_cross_to_another_origin(location):
    _, sent = redirected(URL(ITEM.url), location, request_headers(ITEM, Part(0, 10), ONE), ITEM)
    assert sent == {"Accept-Encoding": "identity", "Range": "bytes=0-9", "If-Range": '"one"'}


def test_an_upgrade_to_https_is_another_origin():
    item = Item("a", "http://example.org/a", headers={"Cookie": "c"})
    url, sent = redirected(URL(item.url), "https://example.org/a", request_headers(item, None, None), item)
    assert url.scheme == "https"
    assert "Cookie" not in sent


@pytest.mark.parametrize(
    "location",
    [
        None,
        "",
        "http://example.org/a",
        "ftp://example.org/a",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://[::1",
        "https://example.org:port/",
        "https://example.org:99999/",
    ],
)
def test_a_redirect_to_less_or_to_no_url_is_not_followed(location):
    with pytest.raises(ItemError) as caught:
        redirected(URL(ITEM.url), location, {}, ITEM)
    assert caught.value.kind is Kind.REDIRECT


@given(st.text(max_size=60))
def test_for_any_location_a_redirect_is_followed_over_https_or_not_at_all(location):
    try:
        url, sent = redirected(URL(ITEM.url), location, request_headers(ITEM, None, None), ITEM)
    except ItemError:
        return
    assert url.scheme == "https"
    assert "Authorization" not in sent or url.host == "example.org"


# What messages show:


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://h/p", "https://h/p"),
        ("https://user:secret@h:8/p", "https://h:8/p"),
        ("https://h/p?X-Amz-Signature=abc&X-Amz-Date=1", "https://h/p?X-Amz-Signature=…&X-Amz-Date=…"),
        ("https://h/p?a=b=c", "https://h/p?a=…"),
        ("https://h/p?a=1#token=secret", "https://h/p?a=…"),
        ("https://h/p?secret", "https://h/p?…"),
        ("https://h/p?a=&b&c=1&", "https://h/p?a=…&…&c=…&"),
        ("https://[::1", "a URL that cannot be read"),
    ],
)
def test_messages_show_a_url_without_its_secrets(url, said):
    assert shown(url) == said


@given(st.text(st.characters(exclude_characters="/?#@"), max_size=20), st.text(max_size=20))
def test_for_any_secret_in_userinfo_or_query_a_message_holds_none(password, value):
    url = shown(f"https://user:{password}@host/path?key=SECRET{value.replace('&', '')}")
    assert "SECRET" not in url
    assert "user:" not in url
