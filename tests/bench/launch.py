"""`python -m app`, killed by SIGKILL at a named point: `python -m tests.bench.launch POINT run MANIFEST …`.

Nothing in `app` knows of it: the points are found through audit hooks (PEP 578), SQLite's trace of statements, and
the interpreter's profile events on the ledger's thread.

- `renamed`: an artifact has its name, and the folder's sync has not begun.
- `before-commit`: a transaction with an outcome in it is about to be committed.
- `after-commit`: it is committed, and nobody has been told.
"""

from __future__ import annotations

import os
import runpy
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

POINTS = ("renamed", "before-commit", "after-commit")
_RECORDS = "UPDATE items SET pending = 0"  # the statement that makes a transaction one with an outcome


class Death:
    """Comes when its point is reached for the first time."""

    def __init__(self, point: str) -> None:
        if point not in POINTS:
            raise SystemExit(f"no point {point}; there are {', '.join(POINTS)}")
        self._point = point
        self._renaming: set[int] = set()  # threads
        self._recorded = False

    def install(self) -> None:
        sys.addaudithook(self._audit)

    def _reached(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        thread = threading.get_ident()
        if thread in self._renaming:  # an event comes before its action: the rename is over when the next one comes
            self._renaming.discard(thread)
            self._reached("renamed")
        if event == "os.rename" and "/artifacts/" in os.fsdecode(arguments[1]):
            self._renaming.add(thread)
        elif event == "sqlite3.connect/handle":
            connection = arguments[0]  # which takes no calls before its constructor has returned
            _at_next_step(lambda: self._trace(connection))

    def _trace(self, connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(self._statement)

    def _statement(self, sql: str) -> None:
        """Called before each statement."""
        if sql.startswith(_RECORDS):
            self._recorded = True
        elif sql.startswith("BEGIN"):
            self._recorded = False
        elif sql.startswith("COMMIT") and self._recorded:
            self._recorded = False
            self._reached("before-commit")
            _at_next_step(lambda: self._reached("after-commit"))


def _at_next_step(action: Callable[[], None]) -> None:
    """Run the action when the call that is under way in this thread has come back to Python."""
    own = sys._getframe().f_code
    callers = {own, sys._getframe(1).f_code}

    def step(frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code not in callers:
            sys.setprofile(None)
            action()

    sys.setprofile(step)


def main() -> None:
    point, *arguments = sys.argv[1:]
    Death(point).install()
    sys.argv = ["app", *arguments]
    runpy.run_module("app", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
