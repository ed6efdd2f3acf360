"""An error that leaves the context unusable, in processes of their own: nothing works after it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE = """
import torch

def process(blob, item):
    if item.id.endswith("deadly"):
        torch.zeros(4, device=blob.device)[torch.tensor([10**6], device=blob.device)]
    return int(blob.sum())
"""


def test_a_poisoned_gpu_ends_the_run_with_exit_3_and_what_was_done_stays(tmp_path: Path) -> None:
    (tmp_path / "poison.py").write_text(MODULE)
    for name in ("a", "b", "deadly"):
        (tmp_path / name).write_bytes(bytes([1]) * 1000)
    (tmp_path / "manifest.txt").write_text("a\nb\ndeadly\n")
    command = [sys.executable, "-m", "app", "run", "manifest.txt", "--processor", "poison:process", "--read-ahead", "0"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 3, ended.stderr
        assert "no device is left" in ended.stderr
    exported = subprocess.run(
        [sys.executable, "-m", "app", "results", "out"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    outcomes = [json.loads(line) for line in exported.stdout.splitlines()]
    assert {Path(outcome["url"]).name: outcome["result"] for outcome in outcomes} == {"a": 1000, "b": 1000}
