"""`run --dry-run`: the whole manifest is read, and nothing is fetched."""

from __future__ import annotations

import tempfile
from pathlib import Path

from app.items import format_size
from app.ledger import Ledger
from app.reading import Reading, ReadingSnapshot
from app.run import http_source
from app.settings import Settings


class _Nobody:
    """Stands where lanes wait for items."""

    def added(self) -> None:
        """Does nothing."""


async def read_manifest(settings: Settings) -> ReadingSnapshot:
    """Read the whole manifest into a ledger that is thrown away; only a manifest behind a URL is fetched itself.

    Raises: UsageError, RunError, as a run would.
    """
    with tempfile.TemporaryDirectory(prefix="gpufeed-dry-run-") as folder:
        async with http_source(settings) as source:
            reading = Reading(settings, source)
            try:
                opened = await reading.open()
                async with await Ledger.open(Path(folder), processor="", arguments={}) as ledger:
                    await reading.into(ledger, opened, _Nobody())
            finally:
                reading.close()
    return reading.snapshot()


def describe(read: ReadingSnapshot) -> str:
    """What was read, in one line."""
    said = [f"{read.items:,} item{'s' * (read.items != 1)}"]
    if read.duplicates:
        said.append(f"{read.duplicates:,} duplicate line{'s' * (read.duplicates != 1)}")
    said.append(f"{format_size(read.known_bytes)} in known sizes")
    said.append(f"{read.without_size:,} without a size")
    return f"{', '.join(said)}; nothing was fetched"
