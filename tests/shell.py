"""Commands run as a shell would: in another process, without the settings of this one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """This one without settings."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("APP_")}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def gpufeed(
    folder: Path, *arguments: str, python: tuple[str, ...] = (), given: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "app", *arguments],
        cwd=folder,
        env=environment(**more),
        input=given,
        capture_output=True,
        text=True,
        timeout=50,
    )


def on_terminal(folder: Path, *arguments: str, **more: str) -> tuple[int, str]:
    """Exit code, and what a terminal of 80 columns was sent."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", *arguments],
        cwd=folder, env=environment(TERM="xterm", COLUMNS="80", LINES="24", **more),
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        try:
            while piece := terminal.read(65536):
                said += piece
        except OSError:  # EIO: nobody writes to it any more
            pass
    return process.wait(50), said.decode()
