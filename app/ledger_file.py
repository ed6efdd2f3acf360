"""The ledger's SQLite file: what is in it, and every statement that changes it. Nothing here awaits."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import Kind, RunError, UsageError
from app.folder import LEDGER, is_remote, lock, sync_folder
from app.items import Failure, Item, Outcome, Seconds, Status

FILE, VERSION = LEDGER, "1"

# A position counts within a reading: seq may run otherwise where a manifest was reordered. Small columns come first,
# so that counting does not touch the pages that long results overflow into.
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID",
    """CREATE TABLE items (seq INTEGER PRIMARY KEY, reading INTEGER NOT NULL, position INTEGER NOT NULL,
    line INTEGER NOT NULL, pending INTEGER NOT NULL DEFAULT 1, status TEXT, kind TEXT, bytes INTEGER,
    id TEXT NOT NULL UNIQUE, url TEXT, size INTEGER, digests TEXT, headers TEXT, params TEXT,
    device TEXT, attempts INTEGER, receive_s REAL, land_s REAL, process_s REAL, finished_at TEXT,
    artifacts TEXT, error TEXT, result TEXT)""",
    "CREATE INDEX pending ON items (reading, position) WHERE pending = 1",
)
_CONTENT = ("url", "size", "digests", "headers", "params")
_FIXED = ("url", "digests", "params")  # what a later reading may not change; headers hold tokens that are renewed
ITEM_COLUMNS = f"id, {', '.join(_CONTENT)}"
OUTCOME_COLUMNS = """id, url, status, bytes, device, attempts, result, artifacts, kind, error,
    receive_s, land_s, process_s, finished_at"""
_ADD = f"""INSERT INTO items (reading, position, line, {ITEM_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET reading = excluded.reading, position = excluded.position, line = excluded.line,
    size = excluded.size, headers = excluded.headers
    WHERE reading < excluded.reading AND {" AND ".join(f"{name} IS excluded.{name}" for name in _FIXED)}"""
_RECORD = """UPDATE items SET pending = 0, status = ?, bytes = ?, device = ?, attempts = ?, result = ?, artifacts = ?,
    kind = ?, error = ?, receive_s = ?, land_s = ?, process_s = ?, finished_at = ? WHERE id = ? AND pending = 1"""


@dataclass(frozen=True, slots=True)
class Added:
    """What became of the rows of one `add`."""

    new: int  # first seen in this reading
    duplicates: int  # seen in this reading before, with the same content
    known: int  # of the new ones, those that an earlier reading had


@dataclass(frozen=True, slots=True)
class Counts:
    """The items of the current reading; what is neither done nor failed is pending."""

    total: int
    done: int
    failed: Mapping[Kind, int]
    bytes_done: int
    known_bytes: int = 0  # of items whose size the manifest says
    without_size: int = 0


class LedgerFile:
    """An open ledger; all calls come from the thread that opened it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._folder = folder
        self._db: sqlite3.Connection
        self._held = ExitStack()  # the lock and the connection
        self._reading = self._position = 0

    def open(self, processor: str, arguments: str) -> None:
        """Take the folder, and open or make the file in it; `close` afterwards, also where this raised."""
        try:
            self._folder.resolve().mkdir(parents=True, exist_ok=True)
            self._held.callback(os.close, lock(self._folder))
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # headers may hold secrets
            sync_folder(self._folder)
        except OSError as error:
            raise UsageError(f"{self._folder} cannot be written to: {error.strerror}") from error
        with as_usage(self.path):
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._held.callback(self._db.close)
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables and not {"meta", "items"} <= tables:
                raise UsageError(f"{self.path} is not a ledger; give another --output, or --fresh")
            self._db.execute(f"PRAGMA journal_mode = {'DELETE' if is_remote(self._folder) else 'WAL'}")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA cache_size = -16384")
        made_with = {"version": VERSION, "processor": processor, "arguments": arguments}
        if not tables:
            with self._transaction():
                for statement in _SCHEMA:
                    self._db.execute(statement)
                self._db.executemany("INSERT INTO meta VALUES (?, ?)", [*made_with.items(), ("reading", "0")])
        _check_made_with(self._folder, dict(self._db.execute("SELECT key, value FROM meta")), made_with)

    def close(self) -> None:
        """Let go of file and folder; a second call does nothing."""
        self._held.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # some errors have rolled back already
                self._db.execute("ROLLBACK")
            raise

    def _set(self, values: Mapping[str, str | None]) -> None:
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def _get(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def begin_reading(self) -> None:
        reading = int(self._get("reading") or 0) + 1
        self._set({"reading": str(reading), "manifest": None})
        self._reading, self._position = reading, 0

    def end_reading(self, sha256: str | None) -> None:
        self._set({"manifest": sha256})

    def continue_reading(self, sha256: str) -> bool:
        if self._get("manifest") != sha256:
            return False
        self._reading = int(self._get("reading") or 0)
        return True

    def add(self, rows: Sequence[tuple[int, Item]]) -> Added:
        first = self._position + 1
        values = [(self._reading, first + n, line, *_item_row(item)) for n, (line, item) in enumerate(rows)]
        last_seq = "SELECT coalesce(max(seq), 0) FROM items"
        with self._transaction():
            seq, changes = self._db.execute(last_seq).fetchone()[0], self._db.total_changes
            try:
                self._db.executemany(_ADD, values)
            except (ValueError, OverflowError) as error:  # half a surrogate pair; a size beyond 64 bits
                where = f"lines {rows[0][0]} to {rows[-1][0]}"
                raise UsageError(f"{where}: an item that the ledger cannot hold: {error}") from error
            new = self._db.total_changes - changes
            inserted = self._db.execute(last_seq).fetchone()[0] - seq
            if new < len(rows):
                self._refuse_changes(values)
        self._position += len(rows)
        return Added(new=new, duplicates=len(rows) - new, known=new - inserted)

    def _refuse_changes(self, values: Sequence[tuple[Any, ...]]) -> None:
        select = f"SELECT reading, line, {', '.join(_CONTENT)} FROM items WHERE id = ?"
        for _, _, line, identity, *content in values:
            reading, other_line, *stored = self._db.execute(select, (identity,)).fetchone()
            for name, old, now in zip(_CONTENT, stored, content, strict=True):
                if old == now:
                    continue
                if reading == self._reading:
                    another = f"{'other' if name.endswith('s') else 'another'} {name}"
                    raise UsageError(f"line {line}: id {identity!r} is already on line {other_line} with {another}")
                if name not in _FIXED:
                    continue
                raise UsageError(
                    f"line {line}: id {identity!r}: its {name} changed since the ledger was made; "
                    f"give it another id, or give another --output or --fresh"
                )

    def next(self, position: int, limit: int) -> tuple[int, list[Item]]:
        """The pending items behind this position of the reading, and the position of the last of them."""
        rows = self._db.execute(
            f"SELECT position, {ITEM_COLUMNS} FROM items WHERE pending = 1 AND reading = ? AND position > ? "
            "ORDER BY position LIMIT ?",
            (self._reading, position, limit),
        ).fetchall()
        return (rows[-1][0] if rows else position), [to_item(row[1:]) for row in rows]

    def retry_failed(self) -> int:
        with self._transaction():
            return self._db.execute("UPDATE items SET pending = 1 WHERE status = 'failed' AND pending = 0").rowcount

    def record(self, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._transaction():
            for row in rows:
                if self._db.execute(_RECORD, row).rowcount != 1:
                    raise RunError(f"item {row[-1]!r} has an outcome already, or is not in the ledger")

    def counts(self) -> Counts:
        done = bytes_done = total = known_bytes = sized = 0
        failed: dict[Kind, int] = {}
        for pending, status, kind, number, size, with_size, sizes in self._db.execute(
            "SELECT pending, status, kind, count(*), sum(bytes), count(size), coalesce(sum(size), 0) FROM items "
            "WHERE reading = ? GROUP BY 1, 2, 3",
            (self._reading,),
        ):
            total, known_bytes, sized = total + number, known_bytes + sizes, sized + with_size
            if pending:
                continue
            if status == Status.DONE:
                done, bytes_done = done + number, bytes_done + size
            else:
                failed[Kind(kind)] = number
        return Counts(total, done, failed, bytes_done, known_bytes, total - sized)


@contextmanager
def as_usage(path: Path) -> Iterator[None]:
    """Make SQLite's errors the operator's: what is at this path is no ledger that can be used."""
    try:
        yield
    except sqlite3.Error as error:
        raise UsageError(f"{path} cannot be used as a ledger: {error}") from error


def _check_made_with(folder: Path, old: Mapping[str, str], now: Mapping[str, str]) -> None:
    if old.get("version") != now["version"]:
        raise UsageError(f"{folder / FILE} is of version {old.get('version')}; this gpufeed knows {now['version']}")
    for name in ("processor", "arguments"):
        if old[name] != now[name]:
            was, wanted = (f"{m['processor']} {m['arguments']}" for m in (old, now))
            raise UsageError(
                f"{folder} was made with another processor or arguments: {was}, not {wanted}; "
                f"give another --output, or --fresh"
            )


def _json(value: Mapping[str, Any]) -> str | None:
    return json.dumps(dict(value), sort_keys=True) if value else None


def _item_row(item: Item) -> tuple[Any, ...]:
    return item.id, item.url, item.size, _json(item.digests), _json(item.headers), _json(item.params)


def to_item(row: Sequence[Any]) -> Item:
    """The item in a row of ITEM_COLUMNS."""
    return Item(row[0], row[1], row[2], *(json.loads(text) if text else {} for text in row[3:]))


def to_row(outcome: Outcome) -> tuple[Any, ...]:
    """What `record` takes. Raises: ValueError, TypeError for a result that JSON cannot hold."""
    error = outcome.error
    return (
        outcome.status.value,
        outcome.bytes,
        outcome.device,
        outcome.attempts,
        json.dumps(outcome.result, allow_nan=False),
        json.dumps(outcome.artifacts),
        None if error is None else error.kind.value,
        None if error is None else json.dumps([error.message, error.traceback]),  # escapes what UTF-8 cannot hold
        outcome.seconds.receive,
        outcome.seconds.land,
        outcome.seconds.process,
        outcome.finished_at,
        outcome.id,
    )


def to_outcome(row: Sequence[Any]) -> Outcome:
    """The outcome in a row of OUTCOME_COLUMNS."""
    identity, url, status, size, device, attempts, result, artifacts, kind, error, *seconds, finished_at = row
    return Outcome(
        id=identity,
        url=url,
        status=Status(status),
        bytes=size,
        device=device,
        attempts=attempts,
        result=json.loads(result),
        artifacts=tuple(json.loads(artifacts)),
        error=None if kind is None else Failure(Kind(kind), *json.loads(error)),
        seconds=Seconds(*seconds),
        finished_at=finished_at,
    )
