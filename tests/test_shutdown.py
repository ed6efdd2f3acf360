"""The shutdown contract, as a shell or an orchestrator sees it: signals, exit codes, and what is committed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lanes.scripted import until
from origin import Origin
from runs import results, write_manifest
from shell import environment

PROCESSOR = """
import os

class Waiting:
    needs_torch = False

    def process(self, blob, item):
        name = item.url.rpartition("/")[2]
        with open("log", "a") as log:
            print(name, file=log)
        if os.path.exists("inside"):
            with open("inside", "w") as inside:
                inside.write(name)
            with open("release") as release:
                release.read()
        return len(blob)
"""
LANES = ("--devices", "cpu", "--read-ahead", "0", "--processor", "waiting:Waiting")
Shell = subprocess.Popen[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with three blobs, and a processor that holds each until the test lets it go."""
    (tmp_path / "waiting.py").write_text(PROCESSOR)
    write_manifest(tmp_path, "a", "b", "c")
    for pipe in ("inside", "release"):
        os.mkfifo(tmp_path / pipe)
    return tmp_path


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Shell]:
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "run", *arguments, *LANES],
        cwd=folder, env=environment(), text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    guard = threading.Timer(40, process.kill)
    guard.start()
    with process:
        try:
            yield process
            process.wait()
        finally:
            process.kill()
            guard.cancel()


def reached(folder: Path) -> str:
    """Wait until the processor is in an item; returns its name."""
    with (folder / "inside").open() as inside:
        return inside.read()


def release(folder: Path) -> None:
    (folder / "inside").unlink()
    with (folder / "release").open("w") as pipe:
        pipe.write("go on")


def heard(process: Shell, number: signal.Signals) -> None:
    """Send the signal, and wait until it is said to be heard."""
    process.send_signal(number)
    assert process.stderr is not None
    for line in process.stderr:
        if number.name in line:
            return
    raise AssertionError("it ended without a word")


def continued(folder: Path) -> list[str]:
    """Run the same command to its end, and return what the processor was called for, in all."""
    (folder / "inside").unlink(missing_ok=True)
    with started(folder, "manifest.txt") as process:
        pass
    assert process.returncode == 0
    assert {name: row["status"] for name, row in results(folder).items()} == dict.fromkeys("abc", "done")
    return sorted((folder / "log").read_text().splitlines())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_after_the_first_signal_the_item_on_the_device_is_finished_and_committed(
    folder: Path, number: signal.Signals, code: int
) -> None:
    with started(folder, "manifest.txt") as process:
        first = reached(folder)
        heard(process, number)
        release(folder)
    assert process.returncode == code
    assert [*results(folder)] == [first]
    assert continued(folder) == ["a", "b", "c"]


def test_after_the_second_signal_it_is_gone_at_once_and_the_same_command_continues(folder: Path) -> None:
    with started(folder, "manifest.txt") as process:
        first = reached(folder)
        heard(process, signal.SIGINT)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert continued(folder) == sorted([first, "a", "b", "c"])


def test_a_device_thread_that_hangs_is_left_behind_after_the_grace(folder: Path) -> None:
    with started(folder, "manifest.txt", "--grace", "0.2") as process:
        first = reached(folder)
        heard(process, signal.SIGTERM)
    assert process.returncode == 143
    assert continued(folder) == sorted([first, "a", "b", "c"])


def test_items_of_a_pipe_are_done_while_it_is_open_and_a_signal_does_not_wait_for_it(folder: Path) -> None:
    with started(folder, "-") as process:
        assert process.stdin is not None
        process.stdin.write("a\n")
        assert reached(folder) == "a"
        heard(process, signal.SIGINT)
        release(folder)
        process.wait()
    assert process.returncode == 130
    assert [*results(folder)] == ["a"]


def test_a_wrong_line_stops_the_claims_and_what_is_on_the_device_is_committed(folder: Path) -> None:
    with started(folder, "-") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("a\n")
        assert reached(folder) == "a"
        process.stdin.write("gopher://old\nb\n")
        process.stdin.close()
        release(folder)
        said = process.stderr.read()
    assert process.returncode == 2
    assert "gpufeed: standard input:2: " in said
    assert "Traceback" not in said
    assert (folder / "log").read_text() == "a\n"
    assert continued(folder) == ["a", "b", "c"]


def test_a_pipe_that_ends_ends_the_run(folder: Path) -> None:
    (folder / "inside").unlink()
    with started(folder, "-") as process:
        process.communicate("a\nb\nc\n")
    assert process.returncode == 0
    assert len(results(folder)) == 3


async def test_a_signal_stops_downloads_that_are_not_whole(folder: Path, origin: Origin) -> None:
    manifest = origin.put("/list.txt", b"blob\n")
    origin.put("/blob", b"x" * 1_000_000, stall_after=500_000)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app", "run", manifest, *LANES, "--progress", "off",
        cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(40):
        await until(lambda: origin.sent_bytes >= 500_000)
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130
    assert results(folder) == {}


def test_a_ledger_that_cannot_grow_ends_the_run_with_exit_3_and_the_same_command_continues(tmp_path: Path) -> None:
    write_manifest(tmp_path, *(f"{index:04}" for index in range(600)))
    run = f"exec {sys.executable} -m app run manifest.txt --processor none --devices cpu --progress off"
    for limit, code in (("ulimit -f 150; ", 3), ("", 0)):  # KiB of any file
        ended = subprocess.run(
            ["bash", "-c", limit + run], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=50
        )
        assert ended.returncode == code, ended.stderr
        if code:
            assert "the ledger" in ended.stderr.splitlines()[-1]
            assert "Traceback" not in ended.stderr
    assert {row["status"] for row in results(tmp_path).values()} == {"done"}
    assert len(results(tmp_path)) == 600
