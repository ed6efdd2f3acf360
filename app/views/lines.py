"""Log lines on standard error, as text or as JSON objects, and the progress lines among them."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from app.items import format_size, timestamp
from app.run import RunSnapshot
from app.views.figures import Figures, Pace, received_text
from app.views.words import duration, kinds_text, printable, rate_text

_LOG = logging.getLogger("gpufeed.progress")

LOGGED_PER_KIND = 20  # failures; the others are in the ledger
FIRST_LINE_S = 2.0
LINE_S = 10.0


class TextFormatter(logging.Formatter):
    """Time, level where it is not info, message; one line, but for a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{at} {level}{printable(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the record's `figures`."""

    def format(self, record: logging.LogRecord) -> str:
        at = timestamp(datetime.fromtimestamp(record.created, UTC))
        row = {"time": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        row |= getattr(record, "figures", {})
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row)


class Flood(logging.Filter):
    """Lets the first failures of each kind through, then one line that says where the others are."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self._output = output
        self._seen: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = getattr(record, "kind", None)
        if kind is None:
            return True
        self._seen[kind] += 1
        if self._seen[kind] == LOGGED_PER_KIND + 1:
            record.msg = "more %s failures are not shown here; `results %s --status failed` lists them all"
            record.args = (str(kind), self._output)
        return self._seen[kind] <= LOGGED_PER_KIND + 1


class Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at the moment: a live display puts itself in its place."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self.as_json = as_json
        self.setFormatter(JsonFormatter() if as_json else TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # nobody reads it any more, which is no reason to end the run


def start_logging(form: Literal["text", "json"], output: str) -> None:
    """Send gpufeed's log lines from info on, and others' from warning on, to standard error."""
    out = Stderr(as_json=form == "json")
    out.addFilter(Flood(output))
    root = logging.getLogger()
    root.handlers[:] = [out]
    root.setLevel(logging.WARNING)
    logging.getLogger("gpufeed").setLevel(logging.INFO)
    logging.captureWarnings(True)


class ProgressLines:
    """Follows a run with log lines, at most one in ten seconds."""

    def __init__(self, snapshot: Callable[[], RunSnapshot]) -> None:
        self._snapshot = snapshot
        self._pace = Pace()

    async def follow(self) -> None:
        """Log until cancelled."""
        elapsed_s, next_s = 0.0, FIRST_LINE_S
        while True:
            await asyncio.sleep(1.0)
            snapshot = self._snapshot()
            figures = self._pace.figures(snapshot)
            elapsed_s += 1.0
            begun = figures.finished > 0 or figures.received_bytes > 0 or elapsed_s >= LINE_S
            if begun and elapsed_s >= next_s:
                next_s = elapsed_s + LINE_S
                _LOG.info(progress_line(snapshot, figures), extra={"figures": progress_figures(snapshot, figures)})

    def close(self) -> None:
        """Does nothing: lines leave nothing to restore."""


def progress_line(snapshot: RunSnapshot, figures: Figures) -> str:
    """A run at one moment in one line."""
    known = "" if figures.total_known else "+"
    said = [
        f"{figures.finished:,}/{figures.total:,}{known} items",
        f"{format_size(figures.received_bytes)} at {rate_text(figures.bytes_per_s)}",
    ]
    if figures.left_s is not None:
        said.append(f"{duration(figures.left_s)} left")
    if snapshot.failed:
        said.append(f"failed {figures.failed:,} ({kinds_text(snapshot.failed)})")
    if snapshot.stopping:
        said.append("stopping")
    lanes = []
    for lane in snapshot.lanes:
        item = f" {lane.item} {received_text(lane)}" if lane.item is not None else ""
        lanes.append(f"{lane.device} {lane.doing}{item}")
    return "; ".join([", ".join(said), *lanes])


def progress_figures(snapshot: RunSnapshot, figures: Figures) -> Mapping[str, Any]:
    """The same as fields."""
    return {
        **asdict(figures),
        "failed_by_kind": {str(kind): count for kind, count in snapshot.failed.items()},
        "skipped": snapshot.skipped,
        "done": snapshot.done,
        "stopping": snapshot.stopping,
        "lanes": [asdict(lane) for lane in snapshot.lanes],
    }
