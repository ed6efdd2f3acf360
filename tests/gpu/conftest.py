"""Tests that need a GPU: `pytest tests/gpu` on a machine with CUDA; elsewhere skipped, without importing torch.

They hold the contracts of tests/lanes on `cuda:0`, and what only a GPU can show.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not (Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists()):
        pytest.skip("there is no GPU here")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
