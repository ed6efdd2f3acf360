"""Frozen snapshots of runs, as views are given them."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

from app.errors import Kind
from app.lanes.lane import LaneSnapshot
from app.ledger import Counts
from app.reading import ReadingSnapshot
from app.run import RunSnapshot, Summary

LANE = LaneSnapshot(
    device="cuda:0",
    doing="processing",
    item="scene-0001",
    item_bytes=600_000_000,
    item_received_bytes=300_000_000,
    open_items=2,
    received_bytes=1_500_000_000,
    connections_busy=8,
    done=2,
    failed=0,
    processed_s=3.0,
    landed_s=0.5,
    waited_s=1.0,
)
READING = ReadingSnapshot(items=10, duplicates=0, known_bytes=6_000_000_000, without_size=0, ended=True)
RUN = RunSnapshot(
    reading=READING,
    skipped=0,
    done=2,
    failed={},
    done_bytes=1_200_000_000,
    received_bytes=1_500_000_000,
    elapsed_s=4.0,
    lanes=(LANE,),
    stopping=False,
)


def lanes(count: int, **changes: Any) -> tuple[LaneSnapshot, ...]:
    return tuple(replace(LANE, device=f"cuda:{number}", **changes) for number in range(count))


def summary(
    run: RunSnapshot = RUN, failed: dict[Kind, int] | None = None, signalled: signal.Signals | None = None
) -> Summary:
    """The summary of a run after which nothing is pending."""
    failed = failed or {}
    counts = Counts(run.reading.items, run.reading.items - sum(failed.values()), failed, 6_000_000_000)
    return Summary(run, counts, signalled)
