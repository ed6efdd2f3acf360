from __future__ import annotations

import threading

import aiohttp
import pytest

from app.commands.origin import Origin, generate

SIZE = 3 << 20


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (1_000_000, 2_500_000), (SIZE - 5, SIZE)])
async def test_a_range_is_the_same_bytes_as_in_the_whole(start: int, stop: int) -> None:
    with Origin({"blob": generate(SIZE, 8, 1)}) as origin:
        async with aiohttp.ClientSession() as session:
            async with session.get(origin.url("blob")) as reply:
                whole = await reply.read()
                assert (reply.status, len(whole)) == (200, SIZE)
            asked = {"Range": f"bytes={start}-{stop - 1}"}
            async with session.get(origin.url("blob"), headers=asked) as reply:
                assert (reply.status, await reply.read()) == (206, whole[start:stop])
                assert reply.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{SIZE}"


async def test_what_it_does_not_have_is_a_404_and_a_range_beyond_the_end_a_416() -> None:
    with Origin({"blob": generate(SIZE, 8, 1)}) as origin:
        async with aiohttp.ClientSession() as session:
            assert (await session.get(origin.url("other"))).status == 404
            beyond = {"Range": f"bytes={SIZE}-"}
            assert (await session.get(origin.url("blob"), headers=beyond)).status == 416


def test_a_generated_blob_is_the_same_each_time_and_has_so_many_values() -> None:
    assert generate(SIZE, 3, 7) == generate(SIZE, 3, 7)
    assert set(generate(SIZE, 3, 7).tile) == set(range(8))


def test_nothing_of_it_is_left_when_its_block_ends() -> None:
    before = threading.active_count()
    with Origin({}):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
