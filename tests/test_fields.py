from __future__ import annotations

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.fields import EntryError, build_item, derive_id, parse_json, parse_object, shown
from app.items import Item
from app.manifest import Base

SHA256 = "ab" * 32


def build(text: str) -> Item:
    return build_item(parse_object(text), Base("file:///data/").locate)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "has no url"),
        ('{"id": "a", "url": "  "}', "has no url"),
        ('{"url": null}', "has no url"),
        ('{"url": ["https://h/a"]}', "url ['https://h/a'] is not a string"),
        ('{"url": "ftp://h/a"}', "unknown scheme 'ftp'"),
        (
            '{"url": "a", "sise": 3}',
            "unknown field 'sise' (known: id, url, size, sha256, md5, crc32c, headers, params)",
        ),
        ('{"url": "a", "size": -1}', "size -1 is negative"),
        ('{"url": "a", "size": "1"}', "size '1' is not an integer"),
        ('{"url": "a", "size": 1.0}', "size 1.0 is not an integer"),
        ('{"url": "a", "size": true}', "size True is not an integer"),
        ('{"url": "a", "size": 9223372036854775808}', "more than 8 EiB"),
        ('{"url": "a", "sha256": "abc"}', "sha256 'abc' is not a digest of 64 hex digits"),
        ('{"url": "a", "md5": 7}', "md5 7 is not a digest"),
        ('{"url": "a", "crc32c": "ü"}', "crc32c 'ü' is not a digest"),
        ('{"url": "a", "id": ""}', "id '' is not"),
        ('{"url": "a", "id": true}', "id True is not"),
        ('{"url": "a", "id": "a\\nb"}', "id 'a\\nb' is not"),
        ('{"url": "a", "headers": "X: y"}', "headers: not a JSON object but 'X: y'"),
        ('{"url": "a", "headers": {"X": 1}}', "headers: X is not a string but 1"),
        ('{"url": "a", "headers": {"X": "1\\r\\nY: 2"}}', "headers: X has a line break"),
        ('{"url": "a", "headers": {"X:\\n": "1"}}', "headers: 'X:\\n' is not a header's name"),
        ('{"url": "a", "params": [1]}', "params: not a JSON object but [1]"),
        ('{"url": "a", "params": {"x": NaN}}', "'NaN' is not a number that JSON can hold"),
        ('{"url": "a", "params": {"x": 1e999}}', "'1e999' is not a number that JSON can hold"),
        ('{"url": "a", "params": {"x": %s}}' % ("1" * 5000), "too many digits"),
        ('{"url": "a", "params": {"x": "\\ud800"}}', "half a surrogate pair"),
        ('{"url": "a", "params": {"x": %s}}' % ("[" * 200 + "]" * 200), "nested more than 100 deep"),
        ("[" * 100_000, "nested more than 100 deep"),
        ('["a"]', "not a JSON object but ['a']"),
        ("https://h/a", "bad JSON: expecting value at character 1"),
        ('{"url": "a"} x', "bad JSON: extra data at character 14"),
        ('{"url": "a', "bad JSON: unterminated string starting at character 9"),
    ],
)
def test_a_field_that_cannot_be_meant_is_refused_with_a_short_reason(text: str, reason: str) -> None:
    with pytest.raises(EntryError) as caught:
        build(text)
    said = str(caught.value)
    assert reason in said
    assert len(said) < 250
    assert "\n" not in said


def test_digests_may_be_in_upper_case_or_as_stores_say_them_in_base64() -> None:
    crc, md5 = bytes.fromhex("0a1b2c3d"), bytes(range(16))
    fields = {
        "url": "a",
        "sha256": SHA256.upper(),
        "md5": base64.b64encode(md5).decode(),
        "crc32c": base64.b64encode(crc).decode(),
    }
    assert build(json.dumps(fields)).digests == {
        "sha256": SHA256,
        "md5": md5.hex(),
        "crc32c": "0a1b2c3d",
    }


def test_an_integer_id_is_its_decimal_text() -> None:
    assert build('{"url": "a", "id": 17}').id == "17"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/x/blob-1.bin?sig=a/b", "blob-1.bin"),
        ("https://h/x/a%20b%2Fc.bin#f/g", "a_b_c.bin"),
        ("https://h/x/", "item"),
        ("https://h", "item"),
        ("https://h?x/y", "item"),
        (f"https://h/{'x' * 100}", "x" * 60),
    ],
)
def test_a_missing_id_is_derived_from_the_url_alone(url: str, name: str) -> None:
    assert re.fullmatch(re.escape(name) + "-[0-9a-f]{16}", derive_id(url))
    assert derive_id(url) == build(json.dumps({"url": url, "size": 3})).id
    assert derive_id(url) != derive_id(url + "2")


@given(st.text())
def test_for_any_text_what_is_json_can_be_written_as_json_again(text: str) -> None:
    try:
        value = parse_json(text)
    except EntryError:
        return
    assert parse_json(json.dumps(value, allow_nan=False, ensure_ascii=False)) == value


@given(st.text() | st.binary() | st.lists(st.integers()))
def test_for_any_value_what_is_shown_is_one_short_line(value: object) -> None:
    assert len(shown(value)) <= 80
    assert shown(value).isprintable()
