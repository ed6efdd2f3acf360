"""One reading of a manifest: its bytes are opened, its items go into the ledger in bulk, and lanes claim them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

from app.errors import ItemError, RunError, UsageError
from app.items import Item, file_path
from app.ledger import Counts, Ledger
from app.manifest import Base, ByteLines, Format, choose_format, count_lines, read_items
from app.settings import Settings
from app.sources import StartOver, TryAgain
from app.sources.http import HttpSource, shown
from app.sources.retry import Patience, wait_s

_LOG = logging.getLogger("gpufeed.reading")

READ_WHOLE_LINES = 100_000  # a local manifest of up to so many lines is read before anything is fetched
_ROWS = 5_000  # so many rows of a million are inserted in about 30 ms, for which claims must wait
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OpenManifest:
    """A manifest that can be read."""

    name: str
    form: Format
    base: Base
    lines: ByteLines
    whole: bool  # short enough to be read before anything is fetched
    fingerprint: str | None  # of its bytes and of how they are read; None for standard input


@dataclass(frozen=True, slots=True)
class ReadingSnapshot:
    items: int
    duplicates: int
    known_bytes: int  # of items whose size the manifest says; until it has ended, duplicates count too
    without_size: int
    ended: bool


class Reading:
    """Reads the manifest in the background. Memory does not grow with its length."""

    def __init__(self, settings: Settings, http: HttpSource) -> None:
        self._settings = settings
        self._http = http
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="manifest")
        self._files = ExitStack()
        self._counted = ReadingSnapshot(0, 0, 0, 0, ended=False)
        self._warned = False

    def close(self) -> None:
        """Let go of the manifest. A thread that waits on standard input is left behind."""
        self._thread.shutdown(wait=False)
        self._files.close()

    def snapshot(self) -> ReadingSnapshot:
        return self._counted

    async def open(self) -> OpenManifest:
        """Open the manifest.

        Raises: UsageError where there is none; RunError where its server cannot be reached.
        """
        name = self._settings.manifest or ""
        scheme = name.partition(":")[0].lower()
        if name == "-":
            if sys.stdin is None:
                raise UsageError("the manifest is to come from standard input, which is closed")
            return self._opened(name, _Pipe(sys.stdin.fileno()), whole=False, digest=None)
        if scheme in ("http", "https"):
            path = await self._download(name)
        else:
            path = file_path(name) if scheme == "file" else Path(name)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._open_file, name, path)

    async def into(self, ledger: Ledger, opened: OpenManifest, added: _Added) -> Counts:
        """Put its items into the ledger, telling `added` after each batch; what the ledger has of them in the end.

        Raises: UsageError for a line that is wrong, or contradicts another or the ledger; those before it are in.
        RunError where the manifest cannot be read on, or from the ledger.
        """
        if opened.fingerprint is not None and await ledger.continue_reading(opened.fingerprint):
            return await self._end(ledger)
        await ledger.begin_reading()
        items = read_items(opened.lines, name=opened.name, form=opened.form, base=opened.base)
        batches = _batches(items, self._settings.limit, opened.lines)
        loop = asyncio.get_running_loop()
        while True:
            try:
                batch = await loop.run_in_executor(self._thread, next, batches, None)
            except OSError as error:
                raise RunError(f"the manifest {opened.name} cannot be read on: {error}") from error
            if batch is None:
                break
            rows, wrong = batch
            await self._add(ledger, opened, rows)
            added.added()
            if wrong is not None:
                raise wrong
        await ledger.end_reading(opened.fingerprint)
        return await self._end(ledger)

    async def _end(self, ledger: Ledger) -> Counts:
        counts = await ledger.counts()
        duplicates = self._counted.duplicates
        self._counted = ReadingSnapshot(counts.total, duplicates, counts.known_bytes, counts.without_size, ended=True)
        return counts

    async def _add(self, ledger: Ledger, opened: OpenManifest, rows: Sequence[tuple[int, Item]]) -> None:
        try:
            counted = await ledger.add(rows)
        except UsageError as error:
            raise UsageError(f"{opened.name}: {error}") from error
        if not self._warned and any(item.digests for _, item in rows):
            self._warned = True
            _LOG.warning("the manifest has digests: they are kept, but this version does not verify them")
        sizes = [item.size for _, item in rows if item.size is not None]
        old = self._counted
        self._counted = ReadingSnapshot(
            items=old.items + counted.new,
            duplicates=old.duplicates + counted.duplicates,
            known_bytes=old.known_bytes + sum(sizes),
            without_size=old.without_size + len(rows) - len(sizes),
            ended=False,
        )

    async def _download(self, url: str) -> Path:
        """The manifest behind a URL, as a temporary file.

        Raises: UsageError, RunError.
        """
        file = tempfile.NamedTemporaryFile(prefix="gpufeed-manifest-")  # noqa: SIM115 (closed with the others)
        self._files.callback(file.close)
        patience = Patience(self._settings.attempts)
        while True:
            sink = _FileSink(file)
            try:
                reply = await self._http.ask(Item("manifest", url), None, None)
                await reply.receive(sink)
                break
            except ItemError as error:
                raise UsageError(f"the manifest cannot be had: {error.message}") from error
            except (TryAgain, StartOver) as error:
                failures = patience.failed(0)
                if failures is None:
                    raise RunError(f"the manifest cannot be had: {error}") from error
                after_s = error.after_s if isinstance(error, TryAgain) else None
                await asyncio.sleep(wait_s(failures, random.random, after_s))
        if sink.end() is not None:
            raise RunError(f"the manifest cannot be kept in {tempfile.gettempdir()} while it is read: {sink.end()}")
        return Path(file.name)

    # On the manifest's thread:

    def _open_file(self, name: str, path: Path) -> OpenManifest:
        try:
            if path.exists() and not path.is_file():  # a FIFO, or /dev/fd/63 of a shell's <(…)
                return self._opened(name, _Pipe(os.open(path, os.O_RDONLY)), whole=False, digest=None)
            file = self._files.enter_context(path.open("rb"))
            whole = count_lines(file, READ_WHOLE_LINES) <= READ_WHOLE_LINES
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256")
            file.seek(0)
        except FileNotFoundError:
            raise UsageError(f"manifest {name!r} is not found") from None
        except OSError as error:
            raise UsageError(f"manifest {name!r} cannot be read: {error.strerror}") from error
        return self._opened(name, file, whole=whole, digest=digest)

    def _opened(self, name: str, lines: ByteLines, *, whole: bool, digest: Any) -> OpenManifest:
        form = choose_format(name, self._settings.manifest_format)
        base = Base.of(name, Path.cwd())
        if digest is not None:
            digest.update(f"\0{form}\0{base}\0{self._settings.limit}".encode())
        said = "standard input" if name == "-" else shown(name) if "://" in name else name
        return OpenManifest(said, form, base, lines, whole, digest.hexdigest() if digest is not None else None)


class _Added(Protocol):
    def added(self) -> None: ...


Batch = tuple[list[tuple[int, Item]], UsageError | None]


def _batches(items: Iterator[tuple[int, Item]], limit: int | None, lines: ByteLines) -> Iterator[Batch]:
    """Rows in pieces; the last piece may end with what is wrong with the next line."""
    rows: list[tuple[int, Item]] = []
    pipe = lines if isinstance(lines, _Pipe) else None
    try:
        for row in islice(items, limit):
            rows.append(row)
            if len(rows) >= _ROWS or (pipe is not None and not pipe.holds_line()):
                yield rows, None
                rows = []
    except UsageError as error:
        yield rows, error
        return
    if rows:
        yield rows, None


class _Pipe:
    """ByteLines as they come; `holds_line` says whether another one can be had without waiting.

    It is never closed: a thread may be waiting in it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = b""
        self._at = 0  # what of it has been handed out
        self._ended = False

    def readline(self, limit: int = -1, /) -> bytes:
        while (end := self._held.find(b"\n", self._at) + 1) == 0 and not self._ended:
            if 0 < limit <= len(self._held) - self._at:
                break
            piece = os.read(self._descriptor, _READ_BYTES)
            self._held, self._at = self._held[self._at :] + piece, 0
            self._ended = not piece
        end = end or len(self._held)
        if limit > 0:
            end = min(end, self._at + limit)
        line, self._at = self._held[self._at : end], end
        return line

    def holds_line(self) -> bool:
        return self._held.find(b"\n", self._at) >= 0


class _FileSink:
    """A body on its way into a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._buffer = bytearray(_READ_BYTES)
        self._filled = 0
        self._error: OSError | None = None  # kept for the end: it is not the connection's
        file.seek(0)
        file.truncate()

    def view(self) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def advance(self, count: int) -> None:
        self._filled += count
        if self._filled == len(self._buffer):
            self.end()

    async def wait(self) -> None:
        raise AssertionError("a file always has room, or fails")

    def end(self) -> OSError | None:
        """Write what is held; what has gone wrong with the file, if anything."""
        try:
            self._file.write(memoryview(self._buffer)[: self._filled])
            self._file.flush()
        except OSError as error:
            self._error = self._error or error
        self._filled = 0
        return self._error
