"""The manifest as text, JSONL or CSV: bytes in, items out, lazily. Opening it is the run's affair."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, Protocol
from urllib.parse import quote_from_bytes, unquote_to_bytes, urljoin

from app.errors import UsageError
from app.fields import CONTROL, FIELDS, EntryError, build_item, check_known, derive_id, parse_json, parse_object, shown
from app.items import Item, file_path

MAX_LINE_BYTES = 1 << 20

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_SCHEMES_TO_COME = ("s3", "gs", "az")
_AUTHORITY = re.compile(  # the usual one first, for speed; else [user@]host[:port], and then a path, a query or the end
    r"https?://(?:[A-Za-z0-9.-]++(?=/)"
    r"|(?:[^/?#@\s]*+@)?(?:[^/?#@:\[\]\\\s]++|\[[0-9A-Fa-f:.]+\])(?::([0-9]{0,5}))?(?![^/?#]))"
)
_INTEGER = re.compile(r"\s*-?[0-9]{1,30}\s*")
_FILE = re.compile(r"file:(?://(?P<host>[^/?#]*))?(?P<path>[^?#]*)", re.IGNORECASE)


class Format(StrEnum):
    """How a manifest is written."""

    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"


class ByteLines(Protocol):
    """What is asked of an open manifest: a binary file, a pipe, or a download in memory."""

    def readline(self, limit: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Base:
    """Where relative entries of a manifest are looked up."""

    url: str  # absolute; of a directory it is file:///…/ with the last slash

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")) and not re.fullmatch(r"file:///(.*/)?", self.url):
            raise ValueError(f"{self.url!r} is neither an http(s) URL nor a directory's file: URL")

    @classmethod
    def of_directory(cls, directory: Path) -> Base:
        """Entries are looked up in this directory, an absolute path."""
        return cls(directory.as_uri().removesuffix("/") + "/")

    @classmethod
    def of(cls, name: str, directory: Path) -> Base:
        """Entries are looked up beside the manifest of this name; for `-` in `directory`, the working directory.

        Raises: UsageError, where the name is no manifest's.
        """
        scheme = _SCHEME.match(name)
        try:
            if scheme and scheme[1].lower() in ("http", "https"):
                return cls(_web_url(scheme[1].lower() + name[scheme.end(1) :]))
            if scheme and scheme[1].lower() == "file":
                return cls.of_directory(file_path(_file_url(name)).parent)
        except EntryError as reason:
            raise UsageError(f"manifest {shown(name)}: {reason}") from None
        return cls.of_directory(directory if name == "-" else (directory / name).parent)

    def locate(self, entry: str) -> str:
        """The absolute URL of a URL or path as the manifest gives it; what follows an http URL's scheme is untouched.

        Raises: EntryError
        """
        if not entry.isprintable() and CONTROL.search(entry):
            raise EntryError(f"url {shown(entry)} has a control character")
        if entry.startswith(("https://", "http://")):
            return _web_url(entry)
        if match := _SCHEME.match(entry):
            scheme = match[1].lower()
            if scheme in ("http", "https"):
                return _web_url(scheme + entry[len(scheme) :])
            if scheme == "file":
                return _file_url(entry)
            if scheme in _SCHEMES_TO_COME:
                raise EntryError(f"{scheme}: URLs are not supported yet (known: http, https, file, and paths)")
            if match[2]:
                raise EntryError(f"unknown scheme {shown(scheme)} (known: http, https, file, and paths)")
        return self._join(entry)

    def _join(self, path: str) -> str:
        if self.url.startswith("file:"):
            if path.startswith("/"):
                return _path_url(path.encode())
            if path.startswith(".") or "/." in path or "//" in path or path.endswith("/"):
                return _path_url(unquote_to_bytes(self.url[len("file://") :]) + path.encode())
            return self.url + quote_from_bytes(path.encode())
        try:
            return _web_url(urljoin(self.url, path))
        except ValueError:
            raise EntryError(f"{shown(path)} makes no URL beside {self.url}") from None


def choose_format(name: str, given: Literal["auto", "text", "jsonl", "csv"]) -> Format:
    """The format that is given, or with `auto` the one that the extension of a path or URL says, else text."""
    if given != "auto":
        return Format(given)
    if re.match(r"https?://", name, re.IGNORECASE):
        name = re.split(r"[?#]", name, maxsplit=1)[0]
    suffix = PurePosixPath(name).suffix.lower()
    return {".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".csv": Format.CSV}.get(suffix, Format.TEXT)


def count_lines(stream: BinaryIO, at_most: int) -> int:
    """How many lines a binary stream holds; no more is read once there are more than `at_most`."""
    count, last = 0, b"\n"
    while count <= at_most and (chunk := stream.read(1 << 20)):
        count, last = count + chunk.count(b"\n"), chunk
    return count + (not last.endswith(b"\n"))


def read_items(stream: ByteLines, *, name: str, form: Format, base: Base) -> Iterator[tuple[int, Item]]:
    """Yields each item with the number of the line where it starts, from 1, reading no further than asked.

    Raises: UsageError `name:line: reason` at the first bad line, after the items before it.
    """
    lines = _Lines(stream)
    try:
        yield from _READERS[form](lines, base)
    except EntryError as reason:
        raise UsageError(f"{name}:{lines.first or lines.number}: {reason}") from None


class _Lines:
    """The lines of a manifest with their ends, without a byte order mark, counted."""

    def __init__(self, stream: ByteLines) -> None:
        self._stream = stream
        self.number = 0  # of the line read last
        self.first = 0  # where the CSV row being read starts: it may go over several lines

    def read(self) -> Iterator[bytes]:
        readline = self._stream.readline
        while line := readline(MAX_LINE_BYTES + 2):
            self.number += 1
            if self.number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if len(line) > MAX_LINE_BYTES and len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
                raise EntryError("the line is longer than 1 MiB")
            yield line

    def read_row(self) -> Iterator[str]:
        """Text for csv.reader, which may want several lines for a row."""
        row_bytes = 0
        for line in self.read():
            row_bytes = len(line) + (row_bytes if self.number > self.first else 0)
            if row_bytes > MAX_LINE_BYTES + 2:
                raise EntryError("the row is longer than 1 MiB; is a quote missing?")
            yield _decoded(line)


def _text_items(lines: _Lines, base: Base) -> Iterator[tuple[int, Item]]:
    for line in lines.read():
        entry = line.strip()
        if entry and not entry.startswith(b"#"):
            url = base.locate(_decoded(entry))
            yield lines.number, Item(derive_id(url), url)


def _jsonl_items(lines: _Lines, base: Base) -> Iterator[tuple[int, Item]]:
    for line in lines.read():
        if line.strip():
            yield lines.number, build_item(parse_object(_decoded(line)), base.locate)


def _csv_items(lines: _Lines, base: Base) -> Iterator[tuple[int, Item]]:
    rows = csv.reader(lines.read_row(), strict=True)
    header = _header(_next_row(rows, lines))
    while (row := _next_row(rows, lines)) is not None:
        if not row:
            continue
        if len(row) != len(header):
            raise EntryError(f"the row has {len(row)} fields, the header {len(header)}")
        fields = {name: _cell(name, cell) for name, cell in zip(header, row, strict=True) if cell.strip()}
        yield lines.first, build_item(fields, base.locate)


def _next_row(rows: Iterator[list[str]], lines: _Lines) -> list[str] | None:
    lines.first = lines.number + 1
    try:
        return next(rows, None)
    except csv.Error as error:
        raise EntryError(f"bad CSV: {error}") from None


def _header(row: list[str] | None) -> list[str]:
    names = [name.strip() for name in row or ()]
    if not any(names):
        raise EntryError(f"the CSV header is empty; the first line names the columns: {', '.join(FIELDS)}")
    check_known(names, "column")
    if len(set(names)) < len(names):
        raise EntryError("the CSV header names a column twice")
    if "url" not in names:
        raise EntryError("the CSV header has no url column")
    return names


def _cell(name: str, cell: str) -> Any:
    """What JSON would hold in this field; whatever is wrong with it is said where JSON's fields are checked."""
    if name in ("headers", "params"):
        return parse_json(cell)
    if name == "size" and _INTEGER.fullmatch(cell):
        return int(cell)
    return cell


_READERS: Mapping[Format, Callable[[_Lines, Base], Iterator[tuple[int, Item]]]] = {
    Format.TEXT: _text_items,
    Format.JSONL: _jsonl_items,
    Format.CSV: _csv_items,
}


def _web_url(url: str) -> str:
    match = _AUTHORITY.match(url)
    if match is None or (match[1] and int(match[1]) > 65535):
        raise EntryError(f"url {shown(url)} has no valid host and port")
    return url


def _file_url(url: str) -> str:
    match = _FILE.fullmatch(url)
    if match is None:
        raise EntryError(f"url {shown(url)}: in a file: URL write ? as %3F and # as %23")
    if (match["host"] or "").lower() not in ("", "localhost"):
        raise EntryError(f"url {shown(url)} names another host; a file: URL is of this machine")
    path = unquote_to_bytes(match["path"])
    if not path.startswith(b"/") or b"\0" in path:
        raise EntryError(f"url {shown(url)} has no absolute path; write file:///…")
    return _path_url(path)


def _path_url(path: bytes) -> str:
    """One URL for one path: without empty and `.` segments, which mean nothing; `..` may lead through a link."""
    return "file:///" + quote_from_bytes(b"/".join(part for part in path.split(b"/") if part not in (b"", b".")))


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise EntryError(f"not UTF-8 at byte {error.start + 1} of the line (0x{line[error.start]:02x})") from None
