"""What a reply means: pure tables, without a socket."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from app.errors import ItemError, Kind
from app.items import Item, Part
from app.sources import StartOver, TryAgain, Version
from app.sources.http import judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Version(1000, '"one"', "Mon, 01 Jan 2024 00:00:00 GMT")
ITEM = Item("a", "https://example.org/a", headers={"Authorization": "Bearer s", "X-Key": "k"})


def judged(status, headers, part=None, known=None):
    return judge(status, CIMultiDict(headers), part, known, NOW)


def partial(said: str, **more: str) -> dict[str, str]:
    return {"Content-Range": said, **{name.replace("_", "-"): value for name, value in more.items()}}


# Rule 6: a 200 is the whole body.


def test_a_200_to_no_range_is_the_whole_body():
    answer = judged(200, {"Content-Length": "1000", "ETag": '"one"'})
    assert (answer.start, answer.length, answer.ranges) == (0, 1000, False)
    assert answer.version == Version(1000, '"one"')


def test_a_200_to_a_range_from_the_first_byte_is_used_from_there():
    answer = judged(200, {"Content-Length": "1000"}, Part(0, 100))
    assert (answer.start, answer.length, answer.ranges) == (0, 1000, False)


def test_a_200_to_a_later_range_is_never_appended():
    with pytest.raises(StartOver) as caught:
        judged(200, {"Content-Length": "1000"}, Part(100, 200))
    assert caught.value.whole


def test_a_200_with_a_changed_etag_to_a_pinned_range_means_that_the_item_changed():
    with pytest.raises(StartOver, match="ETag") as caught:
        judged(200, {"Content-Length": "1000", "ETag": '"two"'}, Part(100, 200), ONE)
    assert not caught.value.whole
    assert caught.value.kind is Kind.CHANGED


@pytest.mark.parametrize("said", [None, "", "no number", "-1", "1.5", "²", "9" * 5000])
def test_a_200_without_a_length_that_can_be_read_is_of_unknown_length(said):
    answer = judged(200, {} if said is None else {"Content-Length": said})
    assert (answer.length, answer.version.total) == (None, None)


def test_a_chunked_body_is_of_unknown_length_whatever_is_announced():
    assert judged(200, {"Transfer-Encoding": "chunked", "Content-Length": "7"}).length is None


# Rule 7: a 206 is checked against what was asked for.


@pytest.mark.parametrize(
    ("said", "length"),
    [
        ("bytes 100-199/1000", 100),
        ("Bytes 100-199/1000", 100),
        (" bytes 100-199/1000 ", 100),
        ("bytes 100-149/1000", 50),  # shorter than asked
        ("bytes 100-199/*", 100),
        ("bytes 100-149/150", 50),  # to the item's end
    ],
)
def test_a_206_for_what_was_asked_or_less_of_it_is_believed(said, length):
    answer = judged(206, partial(said), Part(100, 200))
    assert (answer.start, answer.length, answer.ranges) == (100, length, True)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "100-199/1000",
        "items 100-199/1000",
        "bytes 0-99/1000",  # another first byte
        "bytes 101-199/1000",
        "bytes 100-200/1000",  # longer than asked
        "bytes 100-99/1000",
        "bytes 100-150/120",  # beyond its own total
        "bytes */1000",
        "bytes 100-199",
        "bytes 100-199/1000, bytes 300-399/1000",
        f"bytes 100-199/{'9' * 5000}",
        "bytes ١٠٠-١٩٩/١٠٠٠",
    ],
)
def test_a_206_for_anything_else_is_not_combined(said):
    with pytest.raises(ItemError, match="Content-Range") as caught:
        judged(206, partial(said), Part(100, 200))
    assert caught.value.kind is Kind.RANGE


def test_a_206_whose_body_is_not_as_long_as_its_range_is_not_combined():
    with pytest.raises(ItemError) as caught:
        judged(206, partial("bytes 100-199/1000", Content_Length="99"), Part(100, 200))
    assert caught.value.kind is Kind.RANGE


def test_a_206_to_no_range_is_not_believed():
    with pytest.raises(ItemError) as caught:
        judged(206, partial("bytes 0-99/1000"))
    assert caught.value.kind is Kind.RANGE


def test_a_multipart_206_is_not_combined():
    with pytest.raises(ItemError) as caught:
        judged(206, {"Content-Type": "multipart/byteranges; boundary=x"}, Part(0, 10))
    assert caught.value.kind is Kind.RANGE


@given(st.integers(0, 1 << 60), st.integers(1, 1 << 40), st.integers(0, 1 << 61), st.integers(0, 1 << 61))
def test_for_any_content_range_what_is_believed_starts_where_was_asked_and_stays_inside(start, length, first, last):
    part = Part(start, start + length)
    try:
        answer = judged(206, partial(f"bytes {first}-{last}/*"), part)
    except ItemError:
        return
    assert answer.start == start
    assert 0 < (answer.length or 0) <= length


@given(st.text(max_size=60))
def test_for_any_text_as_content_range_there_is_no_other_error_than_an_items(said):
    for status in (206, 416):
        try:
            judged(status, partial(said), Part(0, 10))
        except (ItemError, StartOver):
            pass


# Rule 8: parts combine under one version only.


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        ({"ETag": '"two"'}, "ETag"),
        ({"Last-Modified": "Tue, 02 Jan 2024 00:00:00 GMT"}, "Last-Modified"),
    ],
)
def test_a_206_of_another_version_means_that_the_item_changed(headers, what):
    with pytest.raises(StartOver, match=what):
        judged(206, {**partial("bytes 100-199/1000"), **headers}, Part(100, 200), ONE)


def test_a_206_with_another_total_means_that_the_item_changed():
    with pytest.raises(StartOver, match="size was 1000 and is 1001"):
        judged(206, partial("bytes 100-199/1001"), Part(100, 200), ONE)


def test_a_206_that_says_nothing_of_its_version_contradicts_none():
    assert judged(206, partial("bytes 100-199/*"), Part(100, 200), ONE).length == 100


def test_a_weak_etag_pins_nothing():
    answer = judged(206, partial("bytes 0-99/1000", ETag='W/"one"'), Part(0, 100))
    assert answer.version == Version(1000)
    judged(206, partial("bytes 100-199/1000", ETag='W/"two"'), Part(100, 200), answer.version)


def test_a_412_means_that_the_item_changed():
    with pytest.raises(StartOver):
        judged(412, {}, Part(100, 200), ONE)


# Rule 9: 416.


def test_a_416_to_the_first_range_of_an_empty_item_is_its_whole_body():
    answer = judged(416, partial("bytes */0"), Part(0, 100))
    assert (answer.start, answer.length, answer.version.total) == (0, 0, 0)


def test_a_416_that_names_another_total_contradicts_what_is_known():
    with pytest.raises(StartOver, match="500 bytes"):
        judged(416, partial("bytes */500"), Part(600, 700), Version(500))
    with pytest.raises(StartOver):
        judged(416, partial("bytes */0"), Part(0, 100), ONE)


@pytest.mark.parametrize("said", ["", "bytes */*", "nonsense"])
def test_a_416_that_names_no_total_fails_the_item(said):
    with pytest.raises(ItemError) as caught:
        judged(416, partial(said), Part(0, 100))
    assert caught.value.kind is Kind.RANGE


# Rules 1 and 12: codings and statuses.


def test_a_coded_body_is_never_taken_for_the_item():
    with pytest.raises(ItemError, match="gzip") as caught:
        judged(200, {"Content-Encoding": "gzip", "Content-Length": "10"})
    assert caught.value.kind is Kind.ENCODING


def test_identity_is_no_coding():
    assert judged(200, {"Content-Encoding": "Identity", "Content-Length": "10"}).length == 10


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_these_statuses_are_worth_another_try(status):
    with pytest.raises(TryAgain, match=str(status)) as caught:
        judged(status, {"Retry-After": "7"})
    assert (caught.value.kind, caught.value.after_s, caught.value.charged) == (Kind.HTTP_STATUS, 7.0, True)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Kind.FORBIDDEN),
        (403, Kind.FORBIDDEN),
        (404, Kind.NOT_FOUND),
        (410, Kind.NOT_FOUND),
        (400, Kind.HTTP_STATUS),
        (405, Kind.HTTP_STATUS),
        (501, Kind.HTTP_STATUS),
        (505, Kind.HTTP_STATUS),
        (204, Kind.HTTP_STATUS),
        (304, Kind.HTTP_STATUS),
    ],
)
def test_other_statuses_fail_the_item(status, kind):
    with pytest.raises(ItemError, match=str(status)) as caught:
        judged(status, {})
    assert caught.value.kind is kind
