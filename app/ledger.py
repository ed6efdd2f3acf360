"""The durable state of one run: its items and their outcomes, in one SQLite file, on one thread.

Each public method is a coroutine that hops to that thread. Cancelling a caller does not stop what the thread began, so
a transaction is there as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from app.errors import RunError
from app.items import Item, Outcome
from app.ledger_file import Added, Counts, LedgerFile, to_row

__all__ = ["Added", "Counts", "Ledger"]

T = TypeVar("T")


class Ledger:
    """One run's ledger, held by this process alone while it is open."""

    def __init__(self, folder: Path) -> None:
        self._file = LedgerFile(folder)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._closed = False
        self._claimed = 0  # position in the reading
        self._claiming = asyncio.Lock()
        self._gathering = threading.Lock()
        self._gathered: list[tuple[list[tuple[Any, ...]], Future[None]]] = []

    @classmethod
    async def open(cls, folder: Path, *, processor: str, arguments: Mapping[str, Any]) -> Ledger:
        """Open the ledger of this output folder, or make both. Cancelled, it leaves nothing open.

        Raises: UsageError where the folder is in use, cannot be written to, or holds another run or something else.
        """
        ledger = cls(folder)
        try:
            await ledger._hop(ledger._file.open, processor, json.dumps(dict(arguments), sort_keys=True))
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def close(self) -> None:
        """Wait for what was begun, and let go of the folder; a second call does nothing."""
        if not self._closed:
            self._closed = True
            try:
                await self._hop(self._file.close)
            finally:
                self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Ledger:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def begin_reading(self) -> None:
        """Start a reading of the manifest: from now on only the items added to it are claimed."""
        await self._hop(self._file.begin_reading)
        self._claimed = 0

    async def continue_reading(self, sha256: str) -> bool:
        """Whether the last reading ended with this manifest; then its items are claimed, without reading it again."""
        return await self._hop(self._file.continue_reading, sha256)

    async def end_reading(self, sha256: str | None) -> None:
        """Mark the reading as complete; the digest is the manifest's, None where it cannot be compared later."""
        await self._hop(self._file.end_reading, sha256)

    async def add(self, rows: Sequence[tuple[int, Item]]) -> Added:
        """Add items, each with its line number, in one transaction; some thousands at a time are fastest.

        Raises: UsageError for an id with other content than before; nothing of these rows is added then.
        """
        return await self._hop(self._file.add, rows)

    async def claim(self, limit: int) -> list[Item]:
        """The next pending items in manifest order; [] when there are none now. Cancelled, it has claimed nothing."""
        async with self._claiming:
            position, items = await self._hop(self._file.next, self._claimed, limit)
            self._claimed = position
            return items

    async def retry_failed(self) -> int:
        """Make failed items pending again, and say how many; called before the first claim.

        An item keeps its old outcome in exports until it has a new one, so an item that left the manifest loses none.
        """
        return await self._hop(self._file.retry_failed)

    async def record(self, outcome: Outcome) -> None:
        """Commit an item's outcome, together with all that arrive while the commit before is running.

        Cancelled, the outcome is committed all the same. Raises: RunError where it could not be, or was before.
        """
        await self.record_all([outcome])

    async def record_all(self, outcomes: Sequence[Outcome]) -> None:
        """Commit these outcomes in one transaction; otherwise like `record`."""
        rows = [to_row(outcome) for outcome in outcomes]
        done: Future[None] = Future()
        with self._gathering:
            if not self._gathered:
                self._thread.submit(self._commit_gathered)
            self._gathered.append((rows, done))
        await asyncio.shield(asyncio.wrap_future(done))

    async def counts(self) -> Counts:
        """How many items of the current reading ended how."""
        return await self._hop(self._file.counts)

    async def _hop(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(self._guarded, call, *args)))

    # What follows runs on the ledger's thread.

    def _guarded(self, call: Callable[..., T], *args: Any) -> T:
        try:
            return call(*args)
        except (sqlite3.Error, OSError) as error:
            raise RunError(f"the ledger {self._file.path} failed: {error}") from error

    def _commit_gathered(self) -> None:
        with self._gathering:
            group, self._gathered = self._gathered, []
        self._commit(group)

    def _commit(self, group: Sequence[tuple[list[tuple[Any, ...]], Future[None]]]) -> None:
        try:
            self._guarded(self._file.record, [row for rows, _ in group for row in rows])
        except Exception as error:  # whatever it is, each caller must hear of it, and only of its own
            if len(group) == 1:
                group[0][1].set_exception(error)
            else:
                for call in group:
                    self._commit([call])
        else:
            for _, done in group:
                done.set_result(None)
