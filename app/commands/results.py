"""`results`: the outcomes of a run as JSONL, CSV, Parquet, or as a manifest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO, Literal

from app.errors import UsageError
from app.exports import export, export_manifest, read_items, read_outcomes
from app.items import Status
from app.results import replacing

Format = Literal["jsonl", "csv", "parquet", "manifest"]


def write(folder: Path, form: Format, status: Status | None, to: str) -> None:
    """Write the outcomes in this folder to a file, or with `-` to standard output; whoever reads that may leave early.

    Of a manifest without a status the failed items are written.

    Raises: UsageError where the folder has no ledger, or the file cannot be written.
    """
    if to == "-":
        if form == "parquet" and sys.stdout.isatty():
            raise UsageError("parquet is not for a terminal; give --to FILE, or send it into one")
        try:
            _write(folder, form, status, sys.stdout.buffer)
            sys.stdout.flush()
        except BrokenPipeError:
            pass
        return
    path = Path(to)
    try:
        if path.exists() and not path.is_file():  # a device or a pipe is written to, not replaced
            with path.open("wb") as out:
                _write(folder, form, status, out)
        else:
            with replacing(path) as temporary, temporary.open("wb") as out:
                _write(folder, form, status, out)
    except OSError as error:
        raise UsageError(f"--to {to} cannot be written: {error.strerror}") from error


def _write(folder: Path, form: Format, status: Status | None, out: BinaryIO) -> None:
    if form == "manifest":
        export_manifest(read_items(folder, status or Status.FAILED), out)
    else:
        export(read_outcomes(folder, status), form, out)
