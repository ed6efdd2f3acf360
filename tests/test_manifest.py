from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest

from app.errors import UsageError
from app.items import DIGESTS, Item
from app.manifest import Base, Format, choose_format, count_lines, read_items

HERE = Base("file:///data/sets/")
ORIGIN = Base("https://origin.example/lists/today.txt?sig=a/b")
SHA256 = "ab" * 32


def read(content: str | bytes, form: Format = Format.TEXT, base: Base = HERE) -> list[tuple[int, Item]]:
    content = content.encode() if isinstance(content, str) else content
    return list(read_items(io.BytesIO(content), name="m", form=form, base=base))


def read_one(content: str | bytes, form: Format = Format.TEXT, base: Base = HERE) -> Item:
    [(_, item)] = read(content, form, base)
    return item


def complaint(content: str | bytes, form: Format = Format.TEXT, base: Base = HERE) -> str:
    with pytest.raises(UsageError) as caught:
        read(content, form, base)
    return str(caught.value)


# text


def test_text_has_a_url_or_path_a_line_with_comments_and_blank_lines_between() -> None:
    content = "# two\n\nhttps://h/a.bin?X=%2F&b=1#f\n   \n  my file.bin  \n#end"
    assert [(number, item.url) for number, item in read(content)] == [
        (3, "https://h/a.bin?X=%2F&b=1#f"),
        (5, "file:///data/sets/my%20file.bin"),
    ]


@pytest.mark.parametrize("form", Format)
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(form: Format) -> None:
    lines = {
        Format.TEXT: ["https://h/a", "https://h/b"],
        Format.JSONL: ['{"url": "https://h/a"}', '{"url": "https://h/b"}'],
        Format.CSV: ["url", "https://h/a", "https://h/b"],
    }[form]
    plain = "\n".join(lines).encode()
    assert read(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n") + b"\r\n", form) == read(plain, form)
    assert len(read(plain, form)) == 2


def test_items_are_read_no_further_than_asked() -> None:
    class Endless:
        count = 0

        def readline(self, limit: int, /) -> bytes:
            self.count += 1
            return (b"https://h/%d\n" % self.count)[:limit]

    stream = Endless()
    items = read_items(stream, name="m", form=Format.TEXT, base=HERE)
    assert [number for number, _ in itertools.islice(items, 3)] == [1, 2, 3]
    assert stream.count == 3


def test_items_before_a_bad_line_are_read() -> None:
    items = read_items(io.BytesIO(b"https://h/a\nftp://h/b\n"), name="list.txt", form=Format.TEXT, base=HERE)
    assert next(items)[1].url == "https://h/a"
    with pytest.raises(UsageError, match=r"^list\.txt:2: unknown scheme 'ftp'"):
        next(items)


# where entries are


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("a.bin", "file:///data/sets/a.bin"),
        ("./x//y/./a.bin", "file:///data/sets/x/y/a.bin"),
        ("../a.bin", "file:///data/sets/../a.bin"),
        (".hidden", "file:///data/sets/.hidden"),
        ("/abs/ü?#.bin", "file:///abs/%C3%BC%3F%23.bin"),
        ("~/a.bin", "file:///data/sets/~/a.bin"),
        ("run:1.bin", "file:///data/sets/run%3A1.bin"),
        ("file:///abs/a%20b", "file:///abs/a%20b"),
        ("file:///abs/a b", "file:///abs/a%20b"),
        ("FILE://localhost/abs/a", "file:///abs/a"),
        ("file:/abs/a", "file:///abs/a"),
        ("HTTPS://H/A", "https://H/A"),
        ("http://user:p%40ss@[::1]:8080?q", "http://user:p%40ss@[::1]:8080?q"),
        ("http://h:/a b", "http://h:/a b"),
    ],
)
def test_an_entry_of_a_local_manifest_becomes_an_absolute_url(entry: str, url: str) -> None:
    assert read_one(entry).url == url


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("a.bin?b=1", "https://origin.example/lists/a.bin?b=1"),
        ("/blobs/a.bin", "https://origin.example/blobs/a.bin"),
        ("//other/a.bin", "https://other/a.bin"),
        ("http://other/a.bin", "http://other/a.bin"),
        ("file:///abs/a", "file:///abs/a"),
    ],
)
def test_an_entry_of_a_manifest_over_http_is_relative_to_its_url(entry: str, url: str) -> None:
    assert read_one(entry, base=ORIGIN).url == url


def test_a_base_is_the_folder_of_the_manifest_or_its_url_or_the_working_directory(tmp_path: Path) -> None:
    here = tmp_path.as_uri()
    assert Base.of("-", tmp_path).url == f"{here}/"
    assert Base.of("m.txt", tmp_path).url == f"{here}/"
    assert Base.of("my sets/m.txt", tmp_path).url == f"{here}/my%20sets/"
    assert Base.of("/m.txt", tmp_path).url == "file:///"
    assert Base.of("file:///x/m.txt", tmp_path).url == "file:///x/"
    assert Base.of("HTTP://h/x/m.txt", tmp_path).url == "http://h/x/m.txt"
    with pytest.raises(UsageError, match="no valid host"):
        Base.of("http:///m.txt", tmp_path)


def test_a_base_that_is_no_directory_cannot_be_built() -> None:
    for url in ("", "sets/", "file:///data/sets", "s3://bucket/"):
        with pytest.raises(ValueError, match="neither"):
            Base(url)


# what is refused


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("s3://bucket/key", "s3: URLs are not supported yet"),
        ("GS:bucket", "gs: URLs are not supported yet"),
        ("az://x/y", "az: URLs are not supported yet"),
        ("ftp://h/a", "unknown scheme 'ftp' (known: http, https, file, and paths)"),
        ("http:///a", "no valid host"),
        ("https:h/a", "no valid host"),
        ("http://h:70000/", "no valid host and port"),
        ("http://a b/", "no valid host"),
        ("http://[::1/", "no valid host"),
        ("file://server/a", "names another host"),
        ("file:a", "no absolute path"),
        ("file:///a%00", "no absolute path"),
        ("file:///a#1", "write ? as %3F and # as %23"),
        ("a\x00b", "control character"),
        ("a\rb", "control character"),
        (b"https://h/\xff", "not UTF-8 at byte 11 of the line (0xff)"),
        ("x" * (1 << 20) + "x", "longer than 1 MiB"),
    ],
)
def test_a_bad_line_of_text_is_refused_with_its_place_and_reason(line: str | bytes, reason: str) -> None:
    line = line.encode() if isinstance(line, str) else line
    said = complaint(b"# list\n" + line + b"\nhttps://h/a")
    assert said.startswith("m:2: ")
    assert reason in said
    assert len(said) < 250


def test_an_entry_that_makes_no_url_beside_a_manifest_over_http_is_refused() -> None:
    assert complaint("//[a", base=ORIGIN).startswith("m:1: '//[a' makes no URL beside https://origin.example/")
    assert "makes no URL" in complaint("mailto:x", base=ORIGIN)


def test_a_line_of_exactly_one_mebibyte_is_read() -> None:
    line = "https://h/".ljust(1 << 20, "x")
    assert read_one(line + "\r\n").url == line


def test_a_bad_line_of_jsonl_is_refused_with_its_place_and_reason() -> None:
    for line, reason in (("{}", "has no url"), ('{"url": "a", "size": -1}', "size -1 is negative")):
        assert complaint('{"url": "https://h/a"}\n\n' + line, Format.JSONL) == f"m:3: {reason}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "1: the CSV header is empty"),
        ("\nurl\n", "1: the CSV header is empty"),
        (",\n", "1: the CSV header is empty"),
        ("url,\na,\n", "1: unknown column ''"),
        ("url,colour\n", "1: unknown column 'colour' (known: id, url,"),
        ("url,url\n", "1: the CSV header names a column twice"),
        ("id,size\n", "1: the CSV header has no url column"),
        ("url,size\na,1\nb,2,3\n", "3: the row has 3 fields, the header 2"),
        ("url,size\na\n", "2: the row has 1 fields, the header 2"),
        ("url,size\n,1\n", "2: has no url"),
        ("url,size\na,-1\n", "2: size -1 is negative"),
        ("url,size\na,many\n", "2: size 'many' is not an integer"),
        ("url,params\na,{x}\n", "2: bad JSON: expecting property name"),
        ('url,params\na,"{\n""x"": 1}"\nb,"[\n1]"\n', "4: params: not a JSON object but [1]"),
        ('url\n"a\nb\nc\n', "2: bad CSV: unexpected end of data"),
        ('url\n"a"b\n', "2: bad CSV: "),
        ("url\n" + "x" * 140_000, "2: bad CSV: field larger than field limit"),
        ('url\n"' + "x\n" * 600_000, "2: bad CSV: field larger than field limit"),
        ("url\n" + '"\n",' * 300_000, "2: the row is longer than 1 MiB"),
    ],
)
def test_a_bad_row_of_csv_is_refused_with_its_place_and_reason(content: str, reason: str) -> None:
    said = complaint(content, Format.CSV)
    assert said.startswith(f"m:{reason}")
    assert len(said) < 250


def test_null_and_empty_cells_say_nothing() -> None:
    nothing = dict.fromkeys(("id", "size", *DIGESTS, "headers", "params"))
    bare = read_one("https://h/a")
    assert read_one(json.dumps({"url": "https://h/a", **nothing}), Format.JSONL) == bare
    assert read_one("id,url,size,sha256,headers\n, https://h/a , ,,", Format.CSV) == bare


# format and length


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.txt", Format.TEXT),
        ("a.lst", Format.TEXT),
        ("csv", Format.TEXT),
        ("-", Format.TEXT),
        ("x.csv/list", Format.TEXT),
        ("https://h/a.txt?as=x.csv", Format.TEXT),
        ("a.JSONL", Format.JSONL),
        ("a.ndjson", Format.JSONL),
        ("https://h/a.jsonl?sig=1.2/3#x", Format.JSONL),
        ("b?c.csv", Format.CSV),
    ],
)
def test_the_extension_of_a_path_or_url_chooses_the_format(name: str, form: Format) -> None:
    assert choose_format(name, "auto") is form
    assert choose_format(name, "jsonl") is Format.JSONL


def test_lines_are_counted_up_to_a_bound() -> None:
    assert [count_lines(io.BytesIO(content), 5) for content in (b"", b"a", b"a\n", b"a\n\nb")] == [0, 1, 1, 3]
    stream = io.BytesIO(b"\n" * (3 << 20))
    assert count_lines(stream, 5) > 5
    assert stream.tell() == 1 << 20
