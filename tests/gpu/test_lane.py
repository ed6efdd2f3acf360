"""The lane contract on a GPU."""

from __future__ import annotations

from lanes.lane_contract import LaneContract


class TestOnTheGpu(LaneContract):
    device_name = "cuda:0"
    needs_torch = True
