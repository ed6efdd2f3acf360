"""Runs the peers' harness with a command of ours, and reads its report."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.measure import ROOT, gpufeed, harness, scratch


def compare(
    peers: Sequence[str], *, options: Sequence[str], timeout_s: float, touched_bytes: int = 0, **settings: Any
) -> dict[str, Any]:
    """Each contender's row by its name, `ours` among them; the table is printed.

    With `touched_bytes`, ours first touches so much memory and frees it again, before its job begins.

    The peers run in the interpreter that `BENCH_PYTHON` names (this one by default), which must have their libraries.
    Raises: SystemExit where a contender failed.
    """
    before = [sys.executable, "-m", "tests.bench.touched", str(touched_bytes)] if touched_bytes else []
    ours = shlex.join([*before, *gpufeed("{manifest}", "{out}", **settings)])
    python = os.environ.get("BENCH_PYTHON") or sys.executable
    with scratch() as folder:
        report = Path(folder) / "report.json"
        argv = [python, str(harness() / "compare.py"), *options, "--peers", ",".join(peers)]
        argv += ["--ours", ours, "--json", str(report)]
        ended = subprocess.run(argv, cwd=ROOT, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
        if not report.exists():
            raise SystemExit(f"compare.py ended with {ended.returncode} and left no report")
        rows = {row["name"]: row for row in json.loads(report.read_text())["rows"]}
    if bad := [name for name, row in rows.items() if not row["good_runs"]]:
        raise SystemExit(f"no good run of {', '.join(bad)}: are its libraries in {python}? (BENCH_PYTHON)")
    return rows
