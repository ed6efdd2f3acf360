"""Figures for people: how fast, how much is left, how busy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from app.items import format_size
from app.lanes.lane import LaneSnapshot
from app.run import RunSnapshot

WINDOW_S = 5.0  # over which the rate is taken


@dataclass(frozen=True, slots=True)
class Figures:
    """What a line or a display says of a run as a whole."""

    finished: int  # items with an outcome, from this run or an earlier one
    total: int  # items read so far
    total_known: bool
    failed: int
    received_bytes: int
    bytes_per_s: float
    elapsed_s: float
    left_s: float | None  # None where nothing tells


class Pace:
    """The rate of received bytes over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque([(0.0, 0)])

    def figures(self, snapshot: RunSnapshot) -> Figures:
        """Takes this snapshot as the latest sample."""
        samples, now_s = self._samples, snapshot.elapsed_s
        samples.append((now_s, snapshot.received_bytes))
        while len(samples) > 2 and samples[1][0] <= now_s - WINDOW_S:
            samples.popleft()
        (first_s, first_bytes), (last_s, last_bytes) = samples[0], samples[-1]
        rate = max(0.0, (last_bytes - first_bytes) / (last_s - first_s)) if last_s > first_s else 0.0
        failed = sum(snapshot.failed.values())
        return Figures(
            finished=snapshot.skipped + snapshot.done + failed,
            total=snapshot.reading.items,
            total_known=snapshot.reading.ended,
            failed=failed,
            received_bytes=snapshot.received_bytes,
            bytes_per_s=rate,
            elapsed_s=now_s,
            left_s=seconds_left(snapshot, rate),
        )


def seconds_left(snapshot: RunSnapshot, bytes_per_s: float) -> float | None:
    """How long the rest will take: as long as its bytes take to come, or its items to be done, whichever is more.

    None while the manifest is being read, and before there is anything to go by.
    """
    reading = snapshot.reading
    finished = snapshot.done + sum(snapshot.failed.values())
    left = reading.items - snapshot.skipped - finished
    if not reading.ended or snapshot.stopping:
        return None
    if left <= 0:
        return 0.0
    mean = 0.0  # bytes of an item
    if not reading.without_size:
        mean = reading.known_bytes / reading.items
    elif snapshot.done:
        mean = snapshot.done_bytes / snapshot.done
    estimates_s = []
    if mean and bytes_per_s:
        missing = left * mean - (snapshot.received_bytes - snapshot.done_bytes)
        if missing > 0:
            estimates_s.append(missing / bytes_per_s)
    if finished:
        estimates_s.append(left * snapshot.elapsed_s / finished)
    return max(estimates_s, default=None)


def busy_share(lane: LaneSnapshot) -> float | None:
    """The share of its time that the device was processing rather than waiting for data; None before it began."""
    both_s = lane.processed_s + lane.waited_s
    return lane.processed_s / both_s if both_s > 0 else None


def received_text(lane: LaneSnapshot) -> str:
    """How much of the lane's item is there."""
    if lane.item is None:
        return ""
    size = "?" if lane.item_bytes is None else format_size(lane.item_bytes)
    return f"{format_size(lane.item_received_bytes)} / {size}"
