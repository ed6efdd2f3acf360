"""Frozen values that travel through every room: Item, Part, Outcome, sizes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from app.errors import Kind

DIGESTS = ("sha256", "md5", "crc32c")
DIGEST_HEX_LENGTH = {"sha256": 64, "md5": 32, "crc32c": 8}
_DIGEST = {name: re.compile(rf"[0-9a-f]{{{length}}}") for name, length in DIGEST_HEX_LENGTH.items()}

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True)
class Item:
    """One unit of work."""

    id: str
    url: str | None  # absolute: http(s)://… or file://…; None where the processor works from params alone
    size: int | None = None  # bytes, where the manifest says it
    digests: Mapping[str, str] = field(default_factory=dict)  # of DIGESTS → lower-case hex
    headers: Mapping[str, str] = field(default_factory=dict)  # sent with every request for it
    params: Mapping[str, Any] = field(default_factory=dict)  # for the processor, as it stands

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("an item's id is empty")
        if self.size is not None and self.size < 0:
            raise ValueError(f"size {self.size} is negative")
        for name, value in self.digests.items():
            if name not in _DIGEST or not _DIGEST[name].fullmatch(value):
                raise ValueError(f"{name} {value!r} is not a digest in lower-case hexadecimal digits")


@dataclass(frozen=True, slots=True)
class Part:
    """The byte range [start, stop) of one item, fetched by one request."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"no byte range: {self.start} to {self.stop}")

    def __len__(self) -> int:
        return self.stop - self.start


class Status(StrEnum):
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """What `error` holds in `results.jsonl`."""

    kind: Kind
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Each the span from the first start to the last end of that activity for the item, in seconds."""

    receive: float = 0.0
    land: float = 0.0
    process: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an item ended. Its artifacts are on disk already (I4)."""

    id: str
    url: str | None
    status: Status
    bytes: int  # of the item, as received
    device: str
    attempts: int  # 1 + how often something of it had to be tried again
    result: Any  # what JSON can hold; None when failed
    artifacts: tuple[str, ...]  # paths relative to the output folder
    error: Failure | None
    seconds: Seconds
    finished_at: str  # RFC 3339, UTC

    def __post_init__(self) -> None:
        if (self.status is Status.FAILED) != (self.error is not None):
            raise ValueError("an outcome is failed exactly when it has an error")


def file_path(url: str) -> Path:
    """The path that an item's `file:///…` URL names."""
    return Path(os.fsdecode(unquote_to_bytes(url.removeprefix("file://"))))


def timestamp(at: datetime) -> str:
    """An instant in UTC as RFC 3339 writes it, to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_size(text: str | int) -> int:
    """Bytes of a size like `256MiB`, `1.5GB` or `1048576`.

    Raises: ValueError, with the units that are known.
    """
    match = _SIZE.fullmatch(str(text))
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not a size; write it like 512MiB or 2GB (KiB MiB GiB TiB KB MB GB TB)")
    return int(float(match[1]) * units[match[2].lower()])


def format_size(size: float) -> str:
    """A size for people: `1.5 GB`, in decimal units with three digits."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError


def format_binary(size: int) -> str:
    """A size that `parse_size` reads back, exact where it can be short: `256MiB`."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)
