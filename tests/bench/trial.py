"""A run that is killed and started again until it is done, and what must hold of it all the while."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.bench.logging_processor import SAMPLE_BYTES
from tests.bench.measure import ROOT, gpufeed, results

_PROCESSOR = "tests.bench.logging_processor:Logged"


@dataclass(frozen=True, slots=True)
class Blob:
    """What an item's outcome is checked against."""

    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Committed:
    """What the ledger says of an item that has an outcome."""

    status: str
    finished_at: str
    artifacts: tuple[str, ...]


class Trial:
    """One manifest and one output folder. `faults` says, in words, whatever did not hold."""

    def __init__(
        self, manifest: Path, output: Path, blobs: Mapping[str, Blob], *, timeout_s: float, **settings: object
    ) -> None:
        self._output = output
        self._log = output.with_name(f"{output.name}.log")
        self._blobs = blobs
        self._timeout_s = timeout_s
        self._command = gpufeed(
            manifest, output, processor=_PROCESSOR, processor_args={"log": str(self._log)}, **settings
        )
        self.faults: list[str] = []
        self.starts = 0

    def kill_at(self, point: str) -> None:
        """Start the run, which kills itself when it is at this point for the first time."""
        before = self.committed()
        if self._start([sys.executable, "-m", "tests.bench.launch", point, *self._command[3:]], None) == 0:
            self.faults.append(f"the run ended before it was at the point {point}")
            return
        after = self.committed()
        named = {name for one in after.values() for name in one.artifacts}
        ahead = [path.name for path in self._output.glob("artifacts/[!.]*") if f"artifacts/{path.name}" not in named]
        if (len(after) > len(before)) != (point == "after-commit"):
            self.faults.append(f"killed at the point {point}, the ledger went from {len(before)} to {len(after)}")
        if not ahead and point != "after-commit":
            self.faults.append(f"killed at the point {point}, no artifact is ahead of the ledger")

    def kill_after(self, seconds: float) -> bool:
        """Start the run and kill it so many seconds later; False where it had ended by then."""
        return self._start(self._command, seconds) == -signal.SIGKILL

    def finish(self) -> None:
        """Start the run and let it end."""
        if (exit_code := self._start(self._command, None)) != 0:
            self.faults.append(f"the last start ended with {exit_code}")

    def check(self) -> None:
        """What must hold in the end: one outcome an item, all of them right, and nothing left lying about."""
        try:
            lines = results(self._output)
        except FileNotFoundError:
            self.faults.append("there are no results")
            return
        ids = [line["id"] for line in lines]
        if sorted(ids) != sorted(self._blobs):
            self.faults.append(f"{len(ids)} outcomes, of {len(set(ids))} items, where {len(self._blobs)} were to do")
        for line in lines:
            blob, result = self._blobs[line["id"]], line["result"] or {}
            if line["status"] != "done" or result["sha256"] != blob.sha256:
                self.faults.append(f"{line['id']} is wrong: {json.dumps(line)[:300]}")
            elif self._sample(line["artifacts"]) != _end_of(blob.path):
                self.faults.append(f"{line['id']}: its artifact is wrong")
        logged = set(self._log.read_text().splitlines())
        if logged != set(self._blobs):
            self.faults.append(f"the processor's log has {len(logged)} items of {len(self._blobs)}")
        if left := [path.name for path in self._output.glob("artifacts/.*")]:
            self.faults.append(f"temporary files are left: {', '.join(left)}")

    def committed(self) -> dict[str, Committed]:
        """What is durable in the ledger, read from a copy of it, so that the looking changes nothing."""
        with tempfile.TemporaryDirectory(prefix="gpufeed-ledger-") as folder:
            for path in self._output.glob("ledger.sqlite*"):
                if not path.name.endswith("-shm"):
                    shutil.copy(path, folder)
            if not (Path(folder) / "ledger.sqlite").exists():
                return {}
            with closing(sqlite3.connect(Path(folder) / "ledger.sqlite")) as db:
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone():
                    return {}
                rows = db.execute("SELECT id, status, finished_at, artifacts FROM items WHERE pending = 0").fetchall()
        return {row[0]: Committed(row[1], row[2], tuple(json.loads(row[3]))) for row in rows}

    def _start(self, command: list[str], kill_after_s: float | None) -> int:
        before, log_end = self.committed(), self._log.stat().st_size if self._log.exists() else 0
        self.starts += 1
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
            try:
                process.wait(kill_after_s if kill_after_s is not None else self._timeout_s)
            except subprocess.TimeoutExpired:
                if kill_after_s is None:
                    self.faults.append(f"start {self.starts} was not done after {self._timeout_s:g} s")
            finally:
                process.kill()
                process.wait()
            errors.seek(0)
            if process.returncode not in (0, -signal.SIGKILL):
                self.faults.append(f"start {self.starts} ended with {process.returncode}: {errors.read()[-1000:]}")
        self._compare(before, log_end)
        return process.returncode

    def _compare(self, before: Mapping[str, Committed], log_end: int) -> None:
        """What was committed before a start is as it was, and the processor has not seen it again."""
        after = self.committed()
        for item_id, one in before.items():
            if after.get(item_id) != one:
                self.faults.append(f"start {self.starts} changed {item_id} from {one} to {after.get(item_id)}")
        if self._log.exists():
            with self._log.open() as log:
                log.seek(log_end)
                again = before.keys() & log.read().splitlines()
            if again:
                self.faults.append(f"start {self.starts} processed again what was committed: {', '.join(again)}")

    def _sample(self, artifacts: list[str]) -> bytes | None:
        return (self._output / artifacts[0]).read_bytes() if len(artifacts) == 1 else None


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - SAMPLE_BYTES))
        return file.read()
