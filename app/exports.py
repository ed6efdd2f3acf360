"""Outcomes and items read from a ledger, also while a run is alive, and written as JSONL, CSV, Parquet or manifest."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Literal

from app.errors import RunError, UsageError
from app.folder import sync_folder
from app.items import Item, Outcome, Status
from app.ledger_file import FILE, ITEM_COLUMNS, OUTCOME_COLUMNS, as_usage, to_item, to_outcome
from app.results import RESULTS, replacing

COLUMNS = (
    *("id", "url", "status", "bytes", "device", "attempts", "result", "artifacts"),
    *("error_kind", "error_message", "error_traceback"),
    *("seconds_receive", "seconds_land", "seconds_process", "finished_at"),
)
_PAGE_ROWS, _PAGE_CHARACTERS = 1000, 8 << 20  # what a reader holds at once
_GROUP_ROWS, _GROUP_CHARACTERS = 10_000, 32 << 20  # a row group of a Parquet file


def read_outcomes(folder: Path, status: Status | None = None) -> Iterator[Outcome]:
    """The last outcome of each item that has one, in the order in which the ledger met the items.

    Raises: UsageError where the folder has no ledger.
    """
    return map(to_outcome, _rows(_ledger(folder), OUTCOME_COLUMNS, status))


def read_items(folder: Path, status: Status | None = None) -> Iterator[Item]:
    """The items that have an outcome (of this status); otherwise like `read_outcomes`."""
    return map(to_item, _rows(_ledger(folder), ITEM_COLUMNS, status))


def write_results(folder: Path) -> None:
    """Put `results.jsonl` in place, whole and durable, with all outcomes of the ledger.

    Raises: RunError where it cannot be written.
    """
    try:
        with replacing(folder / RESULTS) as temporary, temporary.open("wb") as out:
            export(read_outcomes(folder), "jsonl", out)
        sync_folder(folder)
    except (OSError, UsageError) as error:
        raise RunError(f"{folder / RESULTS} cannot be written: {error}") from error


def export(outcomes: Iterable[Outcome], form: Literal["jsonl", "csv", "parquet"], out: BinaryIO) -> None:
    """Write outcomes in this format, a bounded number at a time.

    Raises: UsageError for parquet where pyarrow is not installed.
    """
    if form == "jsonl":
        for outcome in outcomes:
            out.write(json.dumps(as_row(outcome)).encode() + b"\n")
    elif form == "csv":
        _export_csv(outcomes, out)
    else:
        _export_parquet(outcomes, out)


def export_manifest(items: Iterable[Item], out: BinaryIO) -> None:
    """Write items as a JSONL manifest that a run can be given."""
    for item in items:
        line: dict[str, Any] = {"id": item.id, "url": item.url, "size": item.size, **item.digests}
        line |= {"headers": dict(item.headers) or None, "params": dict(item.params) or None}
        out.write(json.dumps({key: value for key, value in line.items() if value is not None}).encode() + b"\n")


def as_row(outcome: Outcome) -> dict[str, Any]:
    """The outcome as it stands in `results.jsonl`."""
    error, seconds = outcome.error, outcome.seconds
    return {
        "id": outcome.id,
        "url": outcome.url,
        "status": outcome.status.value,
        "bytes": outcome.bytes,
        "device": outcome.device,
        "attempts": outcome.attempts,
        "result": outcome.result,
        "artifacts": list(outcome.artifacts),
        "error": error and {"kind": error.kind.value, "message": error.message, "traceback": error.traceback},
        "seconds": {"receive": seconds.receive, "land": seconds.land, "process": seconds.process},
        "finished_at": outcome.finished_at,
    }


def _flat(outcome: Outcome) -> dict[str, Any]:
    """A row of COLUMNS; the result is JSON, and empty where the item failed."""
    row = as_row(outcome)
    error, seconds = row.pop("error") or {}, row.pop("seconds")
    row["result"] = json.dumps(outcome.result) if outcome.status is Status.DONE else None
    row |= {f"error_{name}": error.get(name) for name in ("kind", "message", "traceback")}
    row |= {f"seconds_{name}": value for name, value in seconds.items()}
    return {name: _utf8(row[name]) for name in COLUMNS}


def _utf8(value: Any) -> Any:
    """Messages may hold what UTF-8 cannot: file names that were not, for one."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _export_csv(outcomes: Iterable[Outcome], out: BinaryIO) -> None:
    text = io.TextIOWrapper(out, encoding="utf-8", newline="")
    try:
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        for row in map(_flat, outcomes):
            writer.writerow(row | {"artifacts": json.dumps(row["artifacts"])})
    finally:
        text.detach()  # flushes, and leaves `out` open


def _export_parquet(outcomes: Iterable[Outcome], out: BinaryIO) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError("parquet needs pyarrow: pip install 'gpufeed[parquet]'") from error
    types = {"bytes": pyarrow.int64(), "attempts": pyarrow.int64(), "artifacts": pyarrow.list_(pyarrow.string())}
    types |= {name: pyarrow.float64() for name in COLUMNS if name.startswith("seconds_")}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in COLUMNS])
    with parquet.ParquetWriter(out, schema) as writer:
        for group in _groups(map(_flat, outcomes)):
            writer.write_batch(pyarrow.RecordBatch.from_pylist(group, schema=schema))


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(group) == _GROUP_ROWS or characters > _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing; on a medium that cannot be written to, where WAL needs a file, one that
    expects no writer."""
    uri = path.absolute().as_uri()
    db = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=60)
    try:
        db.execute("SELECT 1 FROM items LIMIT 1")
    except sqlite3.OperationalError:
        if path.with_name(f"{path.name}-wal").exists() or os.access(path.parent, os.W_OK):
            return db  # it says again what is wrong
        db.close()
        db = sqlite3.connect(f"{uri}?immutable=1", uri=True)
    return db


def _ledger(folder: Path) -> Path:
    if not (folder / FILE).is_file():
        raise UsageError(f"{folder} has no {FILE}; give the output folder of a run")
    return folder / FILE


def _rows(path: Path, columns: str, status: Status | None) -> Iterator[tuple[Any, ...]]:
    """Rows, a query for each page of them: without WAL an open query would keep the run from committing."""
    query = f"SELECT seq, {columns} FROM items WHERE seq > ? AND "
    query += "status IS NOT NULL" if status is None else f"status = '{status.value}'"
    last = 0
    with as_usage(path), closing(_read_only(path)) as db:
        while True:
            page: list[tuple[Any, ...]] = []
            characters = 0
            with closing(db.execute(f"{query} ORDER BY seq", (last,))) as cursor:
                while len(page) < _PAGE_ROWS and characters < _PAGE_CHARACTERS and (row := cursor.fetchone()):
                    last, *values = row
                    page.append(tuple(values))
                    characters += sum(len(value) for value in values if isinstance(value, str))
            if not page:
                return
            yield from page
