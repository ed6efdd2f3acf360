"""What the peers' device stage does, as a processor: check the blob, then keep the device without using the CPU."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any, ClassVar, Literal

from tests.bench.measure import harness


class PeerStage:
    """Checks the length and samples of the blob as the peers do, and sleeps for `device_ms`."""

    lands_on: ClassVar[Literal["device", "host"]] = "host"
    needs_torch: ClassVar[bool] = False

    def __init__(self, device_ms: float = 0) -> None:
        self._device_s = device_ms / 1000
        sys.path.insert(0, str(harness()))
        self._check_blob = importlib.import_module("origin").check_blob

    def process(self, blob: memoryview, item: Any) -> dict[str, int]:
        self._check_blob(blob, item.url, item.size)
        time.sleep(self._device_s)
        return {"bytes": len(blob)}
