from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import UsageError
from app.items import Item
from app.processors import DeviceInfo
from app.processors.digest import Digest

ITEM = Item("x", "file:///x")


def run(digest: Digest, content: bytes, cuts: list[int]) -> dict[str, object]:
    digest.begin(ITEM)
    slab = bytearray(content)
    edges = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    for start, stop in pairwise(edges):
        with memoryview(slab)[start:stop] as window:
            digest.update(window, start)
        slab[start:stop] = bytes(stop - start)  # it is valid only until update returns
    return digest.finish(ITEM)


@given(content=st.binary(max_size=5000), cuts=st.lists(st.integers(0, 5000)))
def test_for_any_bytes_and_any_cutting_it_is_the_digest_of_the_whole(content: bytes, cuts: list[int]) -> None:
    expected = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert run(Digest(), content, cuts) == expected


@pytest.mark.parametrize("algorithm", ["sha256", "md5", "sha1", "sha512", "blake2b"])
def test_other_algorithms_are_named_in_the_result(algorithm: str) -> None:
    digest = Digest(algorithm=algorithm)
    digest.open(DeviceInfo("cpu", None))
    assert run(digest, b"abc", [1]) == {algorithm: hashlib.new(algorithm, b"abc").hexdigest(), "bytes": 3}
    digest.close()


def test_begin_makes_what_was_before_void() -> None:
    digest = Digest()
    digest.begin(ITEM)
    digest.update(memoryview(b"lost"), 0)
    assert run(digest, b"kept", []) == {"sha256": hashlib.sha256(b"kept").hexdigest(), "bytes": 4}


@pytest.mark.parametrize("algorithm", ["crc99", "shake_128", "", None])
def test_an_algorithm_that_gives_no_digest_is_refused_with_those_that_do(algorithm: str) -> None:
    with pytest.raises(UsageError, match=r"digest knows no algorithm .*; it knows blake2b, "):
        Digest(algorithm=algorithm)
