"""Local files as a source."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sources.receiving import Heap, fetch

from app.errors import ItemError, Kind
from app.items import Item, Part
from app.sources import StartOver, Version
from app.sources.files import FileSource

BODY = bytes(range(256)) * 1000


@pytest.fixture
def files() -> Iterator[FileSource]:
    source = FileSource(2)
    yield source
    source.close()


def item(path: Path) -> Item:
    return Item("a", path.absolute().as_uri())


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(BODY)
    return path


async def test_a_whole_file_is_read(files, path):
    answer, received = await fetch(files, item(path))
    assert (answer.start, answer.length, answer.ranges) == (0, len(BODY), True)
    assert answer.version.total == len(BODY)
    assert received == BODY


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(start=st.integers(0, len(BODY) + 10), length=st.integers(1, len(BODY) + 10))
def test_for_any_range_just_that_part_of_the_file_is_read(files, path, start, length):
    answer, received = asyncio.run(fetch(files, item(path), Part(start, start + length)))
    assert received == BODY[start : start + length]
    assert (answer.start, answer.length) == (start, len(received))


async def test_an_empty_file_is_read(files, path):
    path.write_bytes(b"")
    for part in (Part(0, 1000), None):
        answer, received = await fetch(files, item(path), part)
        assert (answer.length, answer.version.total, received) == (0, 0, b"")


@pytest.mark.parametrize("name", ["with space", "per%cent", "quest?ion#hash", "ümläut", "new\nline"])
async def test_a_file_of_any_name_is_read(files, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BODY)
    assert (await fetch(files, item(path)))[1] == BODY


@pytest.mark.parametrize("name", ["missing", "blob/below"])
async def test_a_file_that_is_not_there_is_not_found(files, path, name):
    with pytest.raises(ItemError, match="no such file") as caught:
        await files.ask(item(path.parent / name), None, None)
    assert caught.value.kind is Kind.NOT_FOUND


async def test_a_folder_is_unsupported(files, tmp_path):
    with pytest.raises(ItemError, match="not a regular file") as caught:
        await files.ask(item(tmp_path), None, None)
    assert caught.value.kind is Kind.UNSUPPORTED


async def test_a_fifo_is_unsupported_and_not_waited_for(files, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ItemError) as caught:
        async with asyncio.timeout(5):
            await files.ask(item(tmp_path / "pipe"), None, None)
    assert caught.value.kind is Kind.UNSUPPORTED


async def test_a_path_that_no_file_can_have_is_unsupported(files):
    with pytest.raises(ItemError) as caught:
        await files.ask(Item("a", "file:///a%00b"), None, None)
    assert caught.value.kind is Kind.UNSUPPORTED


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_without_permission_is_forbidden(files, path):
    path.chmod(0)
    with pytest.raises(ItemError) as caught:
        await files.ask(item(path), None, None)
    assert caught.value.kind is Kind.FORBIDDEN


async def test_a_file_that_changed_since_its_last_part_starts_the_item_over(files, path):
    answer, _ = await fetch(files, item(path), Part(0, 1000))
    await fetch(files, item(path), Part(1000, 2000), answer.version)
    other = path.with_name("other")
    other.write_bytes(BODY)
    other.replace(path)
    with pytest.raises(StartOver, match="changed"):
        await files.ask(item(path), Part(2000, 3000), answer.version)


async def test_a_file_of_another_size_than_known_starts_the_item_over(files, path):
    with pytest.raises(StartOver, match="size"):
        await files.ask(item(path), None, Version(len(BODY) + 1))


class Meddling(Heap):
    """Does something to the file when the first bytes have come."""

    def __init__(self, size: int, meddle) -> None:
        super().__init__(size)
        self._meddle = meddle

    def view(self) -> memoryview | None:
        view = super().view()
        return view[:1000] if view is not None and self.position == 0 else view

    def advance(self, count: int) -> None:
        if self.position == 0:
            self._meddle()
        super().advance(count)


@pytest.mark.parametrize("length", [0, 500, 1500, len(BODY) - 1])
async def test_a_file_that_shrinks_while_it_is_read_has_changed(files, path, length):
    reply = await files.ask(item(path), None, None)
    with pytest.raises(ItemError, match="while it was read") as caught:
        await reply.receive(Meddling(len(BODY), lambda: os.truncate(path, length)))
    assert caught.value.kind is Kind.CHANGED


async def test_a_file_that_grows_while_it_is_read_has_changed(files, path):
    def grow() -> None:
        with path.open("ab") as file:
            file.write(b"more")

    reply = await files.ask(item(path), None, None)
    with pytest.raises(ItemError) as caught:
        await reply.receive(Meddling(len(BODY), grow))
    assert caught.value.kind is Kind.CHANGED


async def test_a_file_that_is_removed_while_it_is_read_is_read_to_its_end(files, path):
    reply = await files.ask(item(path), None, None)
    sink = Meddling(len(BODY), path.unlink)
    await reply.receive(sink)
    assert sink.received == BODY


async def test_a_reply_that_is_abandoned_closes_its_file(files, path):
    reply = await files.ask(item(path), None, None)
    await reply.abandon()
    assert reply.file.closed


class Withholding(Heap):
    """Has memory for the first bytes only."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.asked = asyncio.Event()

    def view(self) -> memoryview | None:
        return super().view() if self.position == 0 else None

    def advance(self, count: int) -> None:
        super().advance(count)

    async def wait(self) -> None:
        self.asked.set()
        await asyncio.get_running_loop().create_future()


async def test_a_receive_cancelled_while_it_waits_for_memory_closes_its_file(files, path):
    reply, sink = await files.ask(item(path), None, None), Withholding(1000)
    task = asyncio.create_task(reply.receive(sink))
    async with asyncio.timeout(5):
        await sink.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert reply.file.closed
    assert sink.received == BODY[:1000]


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_cancelled_receive_has_left_the_memory_before_it_is_over(files, path, cancels):
    reply, sink = await files.ask(item(path), None, None), Heap(len(BODY))
    task = asyncio.create_task(reply.receive(sink))
    for _ in range(cancels):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await task
    assert reply.file.closed  # no thread can read from it any more
    sink.memory[:] = b"\xaa" * len(BODY)
    await fetch(files, item(path))
    assert not sink.memory.strip(b"\xaa")


async def test_a_cancelled_request_leaves_no_open_file(files, path):
    before = set(os.listdir("/proc/self/fd"))
    for turns in range(6):
        task = asyncio.create_task(files.ask(item(path), None, None))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            async with asyncio.timeout(5):
                await (await task).abandon()
        except asyncio.CancelledError:
            pass
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # that of the listing itself
