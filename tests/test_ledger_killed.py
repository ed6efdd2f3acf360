import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import ids, opened

from app.errors import UsageError
from app.exports import read_outcomes

ROOT = Path(__file__).parent.parent

CHILD = """
import asyncio, sys
from pathlib import Path
from ledgers import item, opened, outcome, read_in

async def hold(folder):
    async with await opened(folder):
        print("open", flush=True)
        sys.stdin.read()

async def record(folder):
    async with await opened(folder) as ledger:
        if not await ledger.continue_reading("digest"):
            await read_in(ledger, *(item(f"i{n}") for n in range(3000)), digest="digest")

        async def one(name):
            await ledger.record(outcome(name, result="x" * 5000))
            print(name, flush=True)

        while items := await ledger.claim(7):
            await asyncio.gather(*(one(each.id) for each in items))

asyncio.run(globals()[sys.argv[1]](Path(sys.argv[2])))
"""


def child(*arguments: str) -> subprocess.Popen[str]:
    path = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'tests')]}"
    return subprocess.Popen(
        [sys.executable, "-c", f"{path}\n{CHILD}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_a_folder_in_use_by_another_process_is_refused_until_that_is_dead(tmp_path):
    with child("hold", str(tmp_path)) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(UsageError, match=f"is in use by process {holder.pid}$"):
            await opened(tmp_path)
        holder.kill()
        holder.wait()
        async with await opened(tmp_path):
            with pytest.raises(UsageError, match="is in use by process"):
                await opened(tmp_path)


async def test_a_killed_run_keeps_every_outcome_that_it_said_was_committed(tmp_path):
    committed: set[str] = set()
    for kill_after in (1, 10, 40, 100, 333):
        with child("record", str(tmp_path)) as run:
            names = [run.stdout.readline().strip() for _ in range(kill_after)]
            run.send_signal(signal.SIGKILL)
            names += run.stdout.read().splitlines()
        names = [name for name in names if name]
        assert not committed & set(names)  # nothing is done again
        committed |= {outcome.id for outcome in read_outcomes(tmp_path)}
        assert set(names) <= committed
    async with await opened(tmp_path) as ledger:
        assert await ledger.continue_reading("digest")
        counts = await ledger.counts()
        left = ids(await ledger.claim(5000))
        assert counts.total == 3000
        assert set(left) | committed == {f"i{n}" for n in range(3000)}
        assert not set(left) & committed
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert all(
            len(json.loads(text)) == 5000 for (text,) in db.execute("SELECT result FROM items WHERE result NOT NULL")
        )
