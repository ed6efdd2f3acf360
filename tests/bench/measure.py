"""What every measuring script does: run a command and say what it took, name the machine, hold figures to limits."""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MB = 10**6


@dataclass(frozen=True, slots=True)
class Took:
    """One command, from its start to its end."""

    exit_code: int  # negative: ended by that signal
    wall_s: float
    cpu_s: float  # user and system
    peak_bytes: int  # of resident memory
    started_at_s: float  # seconds since the epoch
    ended_at_s: float
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, and what the issue asks of it."""

    name: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        said = "PASS" if self.passed else "FAIL"
        return f"{said}  {self.name}: {self.value:.4g} {self.unit} ({bound} {self.limit:.4g})"


def conclude(figures: Sequence[Figure]) -> int:
    """Print each figure with PASS or FAIL; returns the exit code."""
    print()
    for figure in figures:
        print(figure)
    return 0 if all(figure.passed for figure in figures) else 1


def take(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Took:
    """Run a command in the repository's root and wait for it.

    Raises: TimeoutError, after killing it. `peak_bytes` is at least the memory of this process, whose copy the
    command was before it began: keep this process small.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        began_s, started_at_s = time.perf_counter(), time.time()
        process = subprocess.Popen(
            argv, cwd=ROOT, env=os.environ | (env or {}), stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        descriptor = os.pidfd_open(process.pid)
        try:
            in_time = bool(select.select([descriptor], [], [], timeout_s)[0])
        finally:
            wall_s, ended_at_s = time.perf_counter() - began_s, time.time()
            os.close(descriptor)
            os.kill(process.pid, signal.SIGKILL)  # it has ended already, but where time is up
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if not in_time:
            raise TimeoutError(f"not done after {timeout_s:g} s: {' '.join(argv)}")
        texts = [_text(file) for file in (out, err)]
    cpu_s = usage.ru_utime + usage.ru_stime
    return Took(process.returncode, wall_s, cpu_s, usage.ru_maxrss * 1024, started_at_s, ended_at_s, *texts)


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def succeed(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Took:
    """Like `take`. Raises: SystemExit, with what the command said, where it did not end with 0."""
    took = take(argv, timeout_s=timeout_s, env=env)
    if took.exit_code:
        raise SystemExit(f"exit code {took.exit_code}: {' '.join(argv)}\n{took.errors[-3000:]}")
    return took


def gpufeed(manifest: Path | str, output: Path | str, **settings: Any) -> list[str]:
    """The command of a run on the CPU with these settings."""
    flags: list[str] = []
    for name, value in {"devices": "cpu", "output": output, **settings}.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        flags += [f"--{name.replace('_', '-')}", text]
    return [sys.executable, "-m", "app", "run", str(manifest), *flags]


def results(output: Path) -> list[dict[str, Any]]:
    """The lines of an output folder's `results.jsonl`."""
    return [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk, swept away afterwards."""
    with tempfile.TemporaryDirectory(prefix="gpufeed-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def harness() -> Path:
    """The folder of the peers' harness: `BENCH_SHARED`, or `../shared/bench` beside the repository.

    Raises: SystemExit where it is not there.
    """
    folder = Path(os.environ.get("BENCH_SHARED") or ROOT.parent / "shared" / "bench").absolute()
    for name in ("compare.py", "peers.py", "origin.py"):
        if not (folder / name).is_file():
            raise SystemExit(
                f"the peers' harness is not here: no {name} in {os.path.relpath(folder, ROOT)};"
                " set BENCH_SHARED to its folder"
            )
    return folder


def print_machine() -> None:
    """Print what the figures were measured on."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory_kib = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    load = os.getloadavg()[0]
    print(
        f"{time.strftime('%Y-%m-%d')}: {len(os.sched_getaffinity(0))} cores of {model},"
        f" {memory_kib / 1024**2:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()},"
        f" load {load:.1f} before",
        flush=True,
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
