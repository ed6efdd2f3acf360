"""What holds for any manifest."""

from __future__ import annotations

import csv
import io
import json
import re
import string
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import UsageError
from app.items import DIGESTS, Item, file_path
from app.manifest import Base, Format, read_items

HERE = Base("file:///data/sets/")
ORIGIN = Base("https://origin.example/lists/today.txt?sig=a/b")


def read(content: str, form: Format) -> list[tuple[int, Item]]:
    return list(read_items(io.BytesIO(content.encode()), name="m", form=form, base=HERE))


visible = st.characters(exclude_categories=("Cc", "Cs"))
web_urls = st.builds(
    "{}://{}/{}x".format,
    st.sampled_from(["http", "https"]),
    st.from_regex(r"[a-z0-9.-]+", fullmatch=True),
    st.text(visible),
)
file_urls = st.text(visible, min_size=1).map(lambda name: Path(f"/data/{name}").as_uri())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
digests = st.fixed_dictionaries(
    {},
    optional={
        "sha256": st.binary(min_size=32, max_size=32).map(bytes.hex),
        "md5": st.binary(min_size=16, max_size=16).map(bytes.hex),
        "crc32c": st.binary(min_size=4, max_size=4).map(bytes.hex),
    },
)
header_names = st.text(string.ascii_letters + string.digits + "-_", min_size=1)
items = st.builds(
    Item,
    id=st.text(visible, min_size=1).filter(str.strip),
    url=web_urls | file_urls,
    size=st.none() | st.integers(0, 2**63 - 1),
    digests=digests,
    headers=st.dictionaries(header_names, st.text(visible), max_size=3),
    params=st.dictionaries(st.text(), json_values, max_size=3),
)


def fields_of(item: Item) -> dict[str, Any]:
    fields = {"id": item.id, "url": item.url, "size": item.size, "headers": item.headers, "params": item.params}
    return fields | dict(item.digests)


@given(st.lists(items, max_size=5), st.booleans())
def test_for_any_items_jsonl_gives_them_back(written: list[Item], ascii_only: bool) -> None:
    lines = [json.dumps(fields_of(item), ensure_ascii=ascii_only) + "\n" for item in written]
    assert read("".join(lines), Format.JSONL) == list(enumerate(written, 1))


@given(st.lists(items, max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_for_any_items_csv_gives_them_back(written: list[Item], line_end: str) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["id", "url", "size", *DIGESTS, "headers", "params"], lineterminator=line_end)
    writer.writeheader()
    for item in written:
        texts = {"headers": json.dumps(item.headers), "params": json.dumps(item.params)}
        writer.writerow(fields_of(item) | texts)
    assert read(text.getvalue(), Format.CSV) == list(enumerate(written, 2))


@given(st.lists(web_urls | file_urls))
def test_for_any_urls_text_gives_them_back(urls: list[str]) -> None:
    assert [item.url for _, item in read("\n".join(urls), Format.TEXT)] == urls


TOKENS = rb"""{"url":"a" } , " "id": "size": "headers":{ "params": [ ] \ud800 \u 1e9 - url,id,size,params https:// file:
    // [:: :9 @ % # ? .. NaN s3: x null"""
fragments = st.sampled_from([*TOKENS.split(), b"\n", b"\r", b"\0", b" ", b"\xef\xbb\xbf", b"\xff"])


@given(st.binary() | st.lists(fragments).map(b"".join), st.sampled_from(Format), st.sampled_from([HERE, ORIGIN]))
@example(b'{"url":"a","params":' + b'{"a":' * 330 + b"1" + b"}" * 331, Format.JSONL, HERE)
@example(b'{"url":' + b"[" * 960 + b"]" * 960 + b"}", Format.JSONL, HERE)
def test_for_any_bytes_there_are_items_or_one_usage_error(content: bytes, form: Format, base: Base) -> None:
    said = ""
    try:
        for _, item in read_items(io.BytesIO(content), name="m", form=form, base=base):
            assert item.url is not None
            assert item.url.startswith(("http://", "https://", "file:///"))
    except UsageError as error:
        said = str(error)
    assert re.fullmatch(r"(m:[1-9]\d*: .+)?", said)


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name and b"/" not in name and name not in (b".", b"..")))
def test_for_any_file_name_its_url_leads_back_to_it(name: bytes) -> None:
    url = Path("/data/sets", name.decode(errors="surrogateescape")).as_uri()
    assert HERE.locate(url) == url
    assert bytes(file_path(url)) == b"/data/sets/" + name
