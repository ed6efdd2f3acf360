import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import ids, item, opened, outcome, read_in

from app.errors import UsageError
from app.items import Item
from app.ledger import Added, Counts


async def test_the_same_item_twice_is_one_item_and_counted(tmp_path):
    async with await opened(tmp_path) as ledger:
        assert await read_in(ledger, item("a"), item("a"), item("b")) == Added(new=2, duplicates=1, known=0)
        assert await ledger.add([(4, item("b"))]) == Added(new=0, duplicates=1, known=0)
        assert ids(await ledger.claim(9)) == ["a", "b"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Item("x", "https://example.org/y"), "with another url"),
        (item("x", size=2), "with another size"),
        (item("x", size=1, digests={"md5": "1" * 32}), "with other digests"),
        (item("x", size=1, headers={"Authorization": "secret"}), "with other headers"),
        (item("x", size=1, params={"p": 1}), "with other params"),
    ],
)
async def test_an_id_with_other_content_is_refused_with_both_lines(tmp_path, other, said):
    async with await opened(tmp_path) as ledger:
        await ledger.begin_reading()
        with pytest.raises(UsageError, match=f"line 7: id 'x' is already on line 3 {said}") as refused:
            await ledger.add([(3, item("x", size=1)), (7, other)])
        assert "secret" not in str(refused.value)
        assert await ledger.counts() == Counts(0, 0, {}, 0)
        await ledger.add([(3, item("x", size=1))])
        with pytest.raises(UsageError, match=f"line 7: id 'x' is already on line 3 {said}"):
            await ledger.add([(7, other)])
        assert ids(await ledger.claim(9)) == ["x"]


async def test_an_item_that_changed_between_runs_is_refused_though_it_is_done(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("x"))
        await ledger.record(outcome("x"))
        await ledger.begin_reading()
        with pytest.raises(UsageError, match="line 5: id 'x': its params changed since the ledger was made"):
            await ledger.add([(5, item("x", params={"p": 1}))])


@pytest.mark.parametrize("wrong", [item("\ud800"), item("x", size=1 << 70)])
async def test_an_item_that_sqlite_cannot_hold_is_a_usage_error(tmp_path, wrong):
    async with await opened(tmp_path) as ledger:
        await ledger.begin_reading()
        with pytest.raises(UsageError, match="lines 1 to 2"):
            await ledger.add([(1, item("a")), (2, wrong)])
        assert await ledger.claim(5) == []


async def test_another_processor_or_other_arguments_are_refused_with_both_named(tmp_path):
    async with await opened(tmp_path, "stats", dtype="uint8", bins=3):
        pass
    with pytest.raises(UsageError, match=r"stats \{.*\}, not digest \{\}; give another --output, or --fresh"):
        await opened(tmp_path, "digest")
    with pytest.raises(UsageError, match=r'"uint8"\}, not stats \{"dtype": "float32"\}'):
        await opened(tmp_path, "stats", dtype="float32")
    async with await opened(tmp_path, "stats", bins=3, dtype="uint8"):
        pass


@pytest.mark.parametrize("content", [b"no database at all, but text" * 50, b"SQLite format 3\x00" + b"\xff" * 100])
async def test_what_is_no_ledger_is_a_usage_error(tmp_path, content):
    (tmp_path / "ledger.sqlite").write_bytes(content)
    with pytest.raises(UsageError, match="cannot be used as a ledger"):
        await opened(tmp_path)
    assert (tmp_path / "ledger.sqlite").read_bytes() == content


async def test_another_database_is_refused_and_left_as_it_is(tmp_path):
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        db.execute("CREATE TABLE mine (x)")
    content = (tmp_path / "ledger.sqlite").read_bytes()
    with pytest.raises(UsageError, match="is not a ledger"):
        await opened(tmp_path)
    assert (tmp_path / "ledger.sqlite").read_bytes() == content


async def test_a_ledger_of_an_unknown_version_is_refused(tmp_path):
    async with await opened(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
        db.commit()
    with pytest.raises(UsageError, match="version 99"):
        await opened(tmp_path)


async def test_a_folder_that_cannot_be_written_to_is_a_usage_error(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/nowhere")):
        with pytest.raises(UsageError, match="cannot be written to"):
            await opened(folder)


async def test_headers_in_the_ledger_are_for_its_owner_alone(tmp_path):
    async with await opened(tmp_path / "a" / "b"):
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "b").iterdir()}
    assert modes["ledger.sqlite"] == modes["ledger.sqlite-wal"] == 0o600


async def test_claiming_and_recording_use_an_index(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"))
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        claim = "SELECT * FROM items WHERE pending = 1 AND reading = 1 AND position > 0 ORDER BY position LIMIT 1"
        record = "UPDATE items SET pending = 0 WHERE id = 'a' AND pending = 1"
        for statement, index in ((claim, "pending (reading=? AND position>?)"), (record, "(id=?)")):
            (plan,) = db.execute(f"EXPLAIN QUERY PLAN {statement}")
            assert "USING INDEX" in plan[3]
            assert index in plan[3]
