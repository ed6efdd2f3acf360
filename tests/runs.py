"""Runs in this process, with processors that the test writes."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from app.items import Outcome
from app.run import Run, Summary
from app.settings import Settings

DEADLINE_S = 30.0
LOGGING = """
class Logging:
    needs_torch = False

    def __init__(self, log, **_):
        self.log = log

    def process(self, blob, item):
        with open(self.log, "a") as log:
            print(item.url.rpartition("/")[2], file=log)
        return len(blob)
"""
HOLDING = """
import threading

class Holding:
    needs_torch = False
    inside, released = threading.Event(), threading.Event()

    def process(self, blob, item):
        self.inside.set()
        assert self.released.wait(30)
        return len(blob)
"""
_numbers = itertools.count()


def write_module(folder: Path, text: str) -> str:
    """A module in this folder that no other test has; returns its name."""
    name = f"a_tests_module_{next(_numbers)}"
    (folder / f"{name}.py").write_text(text)
    return name


def imported(folder: Path, name: str) -> ModuleType:
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def write_manifest(folder: Path, *names: str, missing: tuple[str, ...] = (), name: str = "manifest.txt") -> Path:
    """A manifest of files, each of which holds its own name a hundred times."""
    for blob in names:
        (folder / blob).write_text(blob * 100)
    path = folder / name
    path.write_text("".join(f"{blob}\n" for blob in (*names, *missing)))
    return path


def settings(folder: Path, manifest: Path | str, **flags: Any) -> Settings:
    flags = {"processor": "none", "output": str(folder / "out"), "devices": "cpu"} | flags
    return Settings(_env_file=None, manifest=str(manifest), **flags)


def make(folder: Path, manifest: Path | str, **flags: Any) -> Run:
    return Run(settings(folder, manifest, **flags), _leave)


async def run(folder: Path, manifest: Path | str, **flags: Any) -> Summary:
    async with asyncio.timeout(DEADLINE_S):
        return await make(folder, manifest, **flags).execute()


def _leave(number: signal.Signals) -> None:
    raise AssertionError(f"nobody sent {number.name}")


def results(folder: Path, output: str = "out") -> dict[str, dict[str, Any]]:
    """The lines of results.jsonl by the last part of their urls."""
    lines = (folder / output / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    found = {row["url"].rpartition("/")[2]: row for row in rows}
    assert len(found) == len(rows)
    return found


def names(outcomes: list[Outcome]) -> list[str]:
    return sorted(outcome.id for outcome in outcomes)
