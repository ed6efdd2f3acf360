"""The live display on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app.items import format_size
from app.lanes.lane import LaneSnapshot
from app.run import RunSnapshot
from app.views.figures import Figures, Pace, busy_share, received_text
from app.views.words import duration, kinds_text, printable, rate_text, shortened

_CLOSE_S = 0.5  # how long a terminal that takes no output may hold up the end of a run
REFRESH_S = 0.2
_NARROW, _WIDE = 70, 100  # columns
_GAP = 2
_DOING = {"processing": "green", "waiting": "yellow", "starting": "cyan", "lost": "bold red"}


def render(snapshot: RunSnapshot, figures: Figures, *, width: int, height: int) -> RenderableType:
    """A run at one moment, in at most so many columns and lines."""
    parts: list[RenderableType] = [_head(figures, width), _bar(figures, width)]
    if snapshot.failed:
        said = f"failed {figures.failed:,}: {kinds_text(snapshot.failed)}"
        parts.append(_line(said, "red"))
    if snapshot.skipped:
        parts.append(_line(f"{snapshot.skipped:,} have an outcome from earlier runs", "dim"))
    if snapshot.stopping:
        parts.append(_line("stopping: what is on the device is finished; Ctrl-C again leaves at once", "bold yellow"))
    room = max(1, height - len(parts) - 2)  # beside the table's head and the last line
    shown = snapshot.lanes if len(snapshot.lanes) <= room else snapshot.lanes[: max(1, room - 1)]
    if shown:
        parts.append(_lanes(shown, width))
    if len(shown) < len(snapshot.lanes):
        parts.append(_line(f"and {len(snapshot.lanes) - len(shown)} more lanes", "dim"))
    parts.append(Text())  # for the ^C that a terminal echoes: at the end of a full line it would begin another
    return Group(*parts)


def _line(said: str, style: str) -> Text:
    return Text(said, style=style, no_wrap=True, overflow="ellipsis")


def _head(figures: Figures, width: int) -> Text:
    known = "" if figures.total_known else "+"
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(f"{figures.finished:,}/{figures.total:,}{known} items", style="bold")
    said = [format_size(figures.received_bytes), rate_text(figures.bytes_per_s)]
    if figures.left_s is not None:
        said.append(f"{duration(figures.left_s)} left")
    if width >= _NARROW:
        said.append(f"{duration(figures.elapsed_s)} elapsed")
    return head.append("   " + "   ".join(said))


def _bar(figures: Figures, width: int) -> Table:
    # None pulses: while the manifest is being read nobody knows how long the bar is.
    total = float(figures.total) if figures.total_known and figures.total else None
    row = Table.grid()  # a bar alone does not end its line
    row.add_row(
        ProgressBar(total, figures.finished, width=min(width, 100), complete_style="green", finished_style="green")
    )
    return row


def _lanes(lanes: tuple[LaneSnapshot, ...], width: int) -> Table:
    """A row for each lane; what leaves the item too little room is left out."""
    device_width = max(4, *(len(lane.device) for lane in lanes))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    columns = [("lane", device_width), ("", 10), ("item", 0), ("received", 17), ("conn", 4), ("busy", 4), ("waits", 5)]
    left_out = {"waits": width < _WIDE, "conn": width < _NARROW, "received": width < _NARROW - 10}
    columns = [(name, size) for name, size in columns if not left_out.get(name, False)]
    item_width = max(4, width - sum(size for _, size in columns) - _GAP * (len(columns) - 1))
    for name, size in columns:
        right = name in ("received", "conn", "busy", "waits")
        table.add_column(name, no_wrap=True, width=size or item_width, justify="right" if right else "left")
    for lane in lanes:
        cells = _cells(lane, item_width)
        table.add_row(*(cells[name] for name, _ in columns))
    return table


def _cells(lane: LaneSnapshot, item_width: int) -> dict[str, Text]:
    share = busy_share(lane)
    return {
        "lane": Text(lane.device, style="bold"),
        "": Text(lane.doing, style=_DOING.get(lane.doing, "dim")),
        "item": Text(shortened(printable(lane.item or ""), item_width)),
        "received": Text(received_text(lane)),
        "conn": Text(str(lane.connections_busy)),
        "busy": Text("" if share is None else f"{share:.0%}"),
        "waits": Text("" if share is None else f"{1 - share:.0%}"),
    }


class LiveDisplay:
    """Follows a run on a terminal. Whatever else is written to it meanwhile stands above the display."""

    def __init__(self, snapshot: Callable[[], RunSnapshot]) -> None:
        self._snapshot = snapshot
        self._pace = Pace()
        self._console = Console(stderr=True, force_terminal=True)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stderr=True,
            redirect_stdout=sys.stdout.isatty(),  # into a file or a pipe it goes on as before
        )
        # A terminal that takes no output, as after Ctrl-S, holds this thread up and not the run.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="display")

    async def follow(self) -> None:
        """Show the run until cancelled, or until the terminal is gone; `close` afterwards."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            await loop.run_in_executor(self._thread, self._live.start)
            while True:
                snapshot = self._snapshot()
                await loop.run_in_executor(self._thread, self._show, snapshot)
                await asyncio.sleep(REFRESH_S)

    def close(self) -> None:
        """Take the display away and give the terminal its cursor back; a second call does nothing."""
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):  # RuntimeError: closed already
            self._thread.submit(self._live.stop).result(_CLOSE_S)
        self._thread.shutdown(wait=False)

    def _show(self, snapshot: RunSnapshot) -> None:
        size = self._console.size
        figures = self._pace.figures(snapshot)
        self._live.update(render(snapshot, figures, width=size.width, height=size.height), refresh=True)
