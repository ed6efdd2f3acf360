import asyncio
import resource

import pytest
from ledgers import ids, item, opened, outcome, read_in

from app.errors import Kind, RunError
from app.exports import read_items, read_outcomes
from app.items import Failure, Item, Outcome, Status
from app.ledger import Added, Counts


async def test_items_are_claimed_once_and_in_manifest_order(tmp_path):
    async with await opened(tmp_path) as ledger:
        assert await ledger.claim(2) == []
        await read_in(ledger, item("c"), item("a"), item("b"))
        assert ids(await ledger.claim(2)) == ["c", "a"]
        assert ids(await ledger.claim(2)) == ["b"]
        assert await ledger.claim(2) == []
        await ledger.add([(4, item("d"))])
        assert ids(await ledger.claim(2)) == ["d"]


async def test_an_item_comes_back_as_it_was_added(tmp_path):
    whole = item(
        "ä/\x00",
        size=7,
        digests={"crc32c": "0" * 8},
        headers={"X": "ü"},
        params={"a": [1, None, {"b": 2.5}], "A": "\ud800"},
    )
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, whole, Item("bare", None))
        assert await ledger.claim(5) == [whole, Item("bare", None)]


async def test_a_continued_run_claims_only_what_has_no_outcome(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), item("b"), item("c"), digest="d1")
        await ledger.claim(3)
        await ledger.record(outcome("b"))
    async with await opened(tmp_path) as ledger:
        assert not await ledger.continue_reading("d2")
        assert await ledger.continue_reading("d1")
        assert ids(await ledger.claim(5)) == ["a", "c"]
        assert await ledger.counts() == Counts(total=3, done=1, failed={}, bytes_done=100, without_size=3)


async def test_a_reading_that_did_not_end_is_not_continued(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), digest="d1")
        await ledger.begin_reading()
        await ledger.add([(1, item("a"))])
        assert not await ledger.continue_reading("d1")
        await ledger.end_reading(None)
        assert not await ledger.continue_reading("d1")


async def test_a_grown_and_reordered_manifest_is_claimed_in_its_own_order(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), item("b"), item("gone"))
        await ledger.record_all([outcome("b"), outcome("gone")])
    async with await opened(tmp_path) as ledger:
        await ledger.begin_reading()
        assert await ledger.add([(1, item("new")), (2, item("b"))]) == Added(new=2, duplicates=0, known=1)
        assert ids(await ledger.claim(9)) == ["new"]
        await ledger.add([(3, item("a"))])
        assert ids(await ledger.claim(9)) == ["a"]
        assert await ledger.counts() == Counts(total=3, done=1, failed={}, bytes_done=100, without_size=3)


async def test_an_outcome_is_read_as_it_was_recorded(tmp_path):
    done = outcome("a", result={"mean": [1.5, None, "\ud800"]})
    failed = outcome("b", kind=Kind.DECODE)
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), item("b", size=3), item("c"))
        await ledger.record(failed)
        await ledger.record(done)
        assert list(read_outcomes(tmp_path)) == [done, failed]
        assert list(read_outcomes(tmp_path, Status.FAILED)) == [failed]
        assert list(read_items(tmp_path, Status.FAILED)) == [item("b", size=3)]
        assert (await ledger.counts()).failed == {Kind.DECODE: 1}


async def test_a_message_that_utf8_cannot_hold_is_kept(tmp_path):
    failed = outcome("a", kind=Kind.PROCESSOR)
    failed = Outcome(
        **{name: getattr(failed, name) for name in failed.__slots__} | {"error": Failure(Kind.DECODE, "\udcff")}
    )
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"))
        await ledger.record(failed)
    assert list(read_outcomes(tmp_path)) == [failed]


async def test_a_second_outcome_is_refused_and_costs_no_other(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), item("b"))
        await ledger.record(outcome("a"))
        said = await asyncio.gather(
            ledger.record(outcome("b")),
            ledger.record(outcome("a")),
            ledger.record(outcome("z")),
            return_exceptions=True,
        )
        assert [type(one) for one in said] == [type(None), RunError, RunError]
        assert "'a' has an outcome already" in str(said[1])
        assert (await ledger.counts()).done == 2


async def test_a_result_that_json_cannot_hold_costs_only_its_caller(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), item("b"))
        said = await asyncio.gather(
            ledger.record(outcome("a", result=float("nan"))), ledger.record(outcome("b")), return_exceptions=True
        )
        assert [type(one) for one in said] == [ValueError, type(None)]


async def test_many_outcomes_share_one_commit(tmp_path):
    names = [f"i{n}" for n in range(500)]
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, *map(item, names))
        before = (tmp_path / "ledger.sqlite-wal").stat().st_size
        await asyncio.gather(*(ledger.record(outcome(name)) for name in names))
        # A commit for each of them would write at least one page of 4 KiB for each.
        assert (tmp_path / "ledger.sqlite-wal").stat().st_size - before < 500 * 4096
        assert (await ledger.counts()).done == 500


async def test_failed_items_are_done_again_only_when_asked(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), item("b"), digest="d")
        await ledger.record_all([outcome("a"), outcome("b", kind=Kind.TIMEOUT)])
    async with await opened(tmp_path) as ledger:
        await ledger.continue_reading("d")
        assert await ledger.claim(9) == []
        assert await ledger.retry_failed() == 1
        assert await ledger.retry_failed() == 0
        assert await ledger.counts() == Counts(total=2, done=1, failed={}, bytes_done=100, without_size=2)
        assert [one.status for one in read_outcomes(tmp_path)] == [Status.DONE, Status.FAILED]
        assert ids(await ledger.claim(9)) == ["b"]
        await ledger.record(outcome("b"))
        assert [one.status for one in read_outcomes(tmp_path)] == [Status.DONE, Status.DONE]


async def test_a_cancelled_record_is_committed_all_the_same(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"))
        task = asyncio.create_task(ledger.record(outcome("a")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await ledger.counts()).done == 1


async def test_a_cancelled_claim_has_claimed_nothing(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"))
        task = asyncio.create_task(ledger.claim(1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ids(await ledger.claim(1)) == ["a"]


async def test_a_cancelled_open_lets_go_of_the_folder(tmp_path):
    task = asyncio.create_task(opened(tmp_path))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with await opened(tmp_path):
        pass


async def test_a_full_disk_stops_the_run_and_marks_nothing_done(tmp_path):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), item("b"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
        try:
            with pytest.raises(RunError, match="ledger"):
                await ledger.record(outcome("a", result="x" * (4 << 20)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert (await ledger.counts()).done == 0
        await ledger.record(outcome("a"))
        assert (await ledger.counts()).done == 1
