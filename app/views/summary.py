"""How a run ended, for people and for machines, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.items import format_size
from app.lanes.lane import LaneSnapshot
from app.results import RESULTS
from app.run import RunSnapshot, Summary
from app.views.words import duration, kinds_text, printable, rate_text


def summary_lines(summary: Summary, output: str) -> list[str]:
    """The summary as text: a line each for what was done, what failed, each lane, and what to do next."""
    run, counts = summary.snapshot, summary.counts
    failed, failed_now = sum(counts.failed.values()), sum(run.failed.values())
    total = f"{counts.total:,}{'' if run.reading.ended else '+'}"
    rows = [("done", f"{counts.done:,} of {total} items, {format_size(counts.bytes_done)}")]
    if failed:
        earlier = f"; {failed - failed_now:,} of them in earlier runs" if failed > failed_now else ""
        rows.append(("failed", f"{failed:,} ({kinds_text(counts.failed)}){earlier}"))
    if run.skipped:
        rows.append(("skipped", f"{run.skipped:,} with an outcome from earlier runs"))
    rate = run.received_bytes / run.elapsed_s if run.elapsed_s > 0 else 0.0
    rows.append(
        ("received", f"{format_size(run.received_bytes)} in {_time(run.elapsed_s)}, {rate_text(rate)}"),
    )
    rows += [(lane.device, _lane(lane)) for lane in run.lanes]
    limit = verdict(run)
    if limit:
        rows.append(("limit", limit))
    rows.append(("results", f"{output.rstrip('/')}/{RESULTS}"))
    if failed:
        rows.append(("retry", "a run with the same arguments and --retry-failed does the failed items again;"))
        rows.append(("", f"python -m app results {output} --format manifest lists them"))
    width = max(len(name) for name, _ in rows)
    return [printable(f"{name:<{width}}  {said}".rstrip()) for name, said in rows]


def summary_row(summary: Summary, output: str) -> Mapping[str, Any]:
    """The summary as one JSON object."""
    run, counts = summary.snapshot, summary.counts
    return {
        "total": counts.total,
        "done": counts.done,
        "failed": {str(kind): count for kind, count in counts.failed.items()},
        "bytes_done": counts.bytes_done,
        "run": {
            "done": run.done,
            "failed": {str(kind): count for kind, count in run.failed.items()},
            "skipped": run.skipped,
            "received_bytes": run.received_bytes,
            "elapsed_s": run.elapsed_s,
            "lanes": [asdict(lane) for lane in run.lanes],
        },
        "limit": verdict(run),
        "interrupted": summary.signalled.name if summary.signalled is not None else None,
        "results": f"{output.rstrip('/')}/{RESULTS}",
    }


def verdict(run: RunSnapshot) -> str:
    """One sentence on what held the run up; empty where too little was done to tell."""
    processed_s = sum(lane.processed_s for lane in run.lanes)
    waited_s = sum(lane.waited_s for lane in run.lanes)
    if processed_s + waited_s < 0.1:
        return ""
    share = waited_s / (processed_s + waited_s)
    devices = "the devices" if len(run.lanes) > 1 else "the device"
    starting_s = run.elapsed_s - (processed_s + waited_s) / len(run.lanes)
    if starting_s > run.elapsed_s / 2:
        return f"start-up: {devices} could be used after {_time(starting_s)}"
    if share > 0.5:
        return f"the sources: {devices} waited for data {share:.0%} of the time"
    return f"{devices}: processing took {1 - share:.0%} of the time"


def _lane(lane: LaneSnapshot) -> str:
    failed = f", {lane.failed:,} failed" if lane.failed else ""
    landed = f", landed {_time(lane.landed_s)}" if lane.device.startswith("cuda") else ""
    lost = " (lost)" if lane.doing == "lost" else ""
    return (
        f"{lane.done:,} done{failed}; processed {_time(lane.processed_s)}{landed},"
        f" waited for data {_time(lane.waited_s)}{lost}"
    )


def _time(seconds: float) -> str:
    if seconds >= 100:
        return duration(seconds)
    return f"{seconds:.1f} s" if seconds >= 9.95 else f"{seconds:.2f} s"
