"""Whoever looks at a run while it lasts: a live display, or lines in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from app.run import RunSnapshot
from app.views.lines import ProgressLines

_LOG = logging.getLogger("gpufeed.views")


class View(Protocol):
    async def follow(self) -> None: ...

    def close(self) -> None: ...


class Watch:
    """One view of a run. A view that fails costs only the view."""

    def __init__(self, snapshot: Callable[[], RunSnapshot], *, live: bool) -> None:
        self._snapshot = snapshot
        self._live = live
        self._view: View | None = None

    async def follow(self) -> None:
        """Show the run until cancelled; `close` afterwards."""
        try:
            if self._live:
                # rich takes a tenth of a second to import, in which the first requests can leave.
                self._view = await asyncio.to_thread(_open_display, self._snapshot)
            else:
                self._view = ProgressLines(self._snapshot)
            await self._view.follow()
        except Exception:
            self.close()
            _LOG.exception("the progress display failed, and the run goes on without it")

    def close(self) -> None:
        """Leave the terminal as it was; may be called at any moment, and twice."""
        if self._view is not None:
            self._view.close()


def _open_display(snapshot: Callable[[], RunSnapshot]) -> View:
    from app.views.progress import LiveDisplay

    return LiveDisplay(snapshot)
