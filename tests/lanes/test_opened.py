"""What an open item decides: which part is next, what an answer means, when it starts over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ItemError, Kind
from app.items import Item, Part
from app.lanes.opened import OpenItem, Span, State, Work
from app.sources import Answer, StartOver, Version

PART = 4096


def opened(size: int | None = None, **fields: Any) -> OpenItem:
    return OpenItem(Item("x", "test://x", size), 1, PART, window_bytes=PART // 4, readers=1, **fields)


def work_on(item: OpenItem, part: Part | None) -> Work:
    task: Any = None  # only readers are ever interrupted
    work = Work(item, part, task, item.starts)
    item.works.add(work)
    return work


def whole(total: int | None, strong: str | None = None) -> Answer:
    return Answer(0, total, Version(total, strong), ranges=False)


def ranged(start: int, stop: int, total: int | None, strong: str | None = None) -> Answer:
    return Answer(start, stop - start, Version(total, strong), ranges=True)


def hand_out(item: OpenItem) -> list[Part | None]:
    """All parts that can be had in a row."""
    parts = []
    while item.has_parts:
        parts.append(item.next_part())
        assert len(parts) < 10_000
    return parts


def answered(item: OpenItem, answer: Answer) -> Work:
    """The first answer comes in, and its landing is there."""
    work = work_on(item, item.next_part())
    item.believe(answer)
    work.stop = item.accept(answer, work)
    if item.state is not State.RECEIVING:
        item.to(State.RECEIVING)
    return work


@given(st.integers(1, 9_000), st.integers(1, 64), st.integers(1, 16), st.integers(1, 512))
def test_for_any_number_of_readers_parts_shrink_so_that_the_last_ones_end_together(
    size: int, windows: int, readers: int, window: int
) -> None:
    item = OpenItem(Item("x", "test://x", size), 1, windows * window, window_bytes=window, readers=readers, eager=True)
    item.to(State.RECEIVING)
    parts = hand_out(item)
    lengths = [len(part) for part in parts if part is not None]
    assert [0, *(part.stop for part in parts if part is not None)][:-1] == [part.start for part in parts if part]
    assert sum(lengths) == size
    assert lengths == sorted(lengths, reverse=True)
    assert all(length % window == 0 for length in lengths[:-1])
    least = min(4, windows) * window
    left = size
    for length in lengths:
        assert length <= max(left / readers + window, least)
        left -= length


@given(st.integers(1, 5000), st.integers(1, 3000), st.booleans())
def test_for_any_size_and_part_size_the_parts_cover_the_item_just_once(size: int, part: int, known: bool) -> None:
    item = OpenItem(Item("x", "test://x", size if known else None), 1, part, window_bytes=1, readers=1)
    if known:
        item.to(State.RECEIVING)
    assert item.has_parts
    first = item.next_part()
    assert first is not None
    work = work_on(item, first)
    assert not item.has_parts  # before its first answer nobody knows whether there are ranges
    answer = ranged(0, min(part, size), size)
    item.believe(answer)
    stop = item.accept(answer, work)
    if not known:
        item.to(State.RECEIVING)
    assert stop == min(part, size)
    ends = [0, stop]
    for next_ in hand_out(item):
        assert next_ is not None
        assert next_.start == ends[-1]
        assert 0 < len(next_) <= part
        ends.append(next_.stop)
    assert ends[-1] == size
    assert not item.parts_left


def test_an_item_whose_server_honours_ranges_hands_out_all_parts_before_any_answer() -> None:
    item = opened(3 * PART, eager=True)
    item.to(State.RECEIVING)
    assert hand_out(item) == [Part(0, PART), Part(PART, 2 * PART), Part(2 * PART, 3 * PART)]


def test_a_body_without_ranges_is_one_part() -> None:
    item = opened()
    work = answered(item, whole(10 * PART))
    assert work.stop == 10 * PART
    assert hand_out(item) == []


def test_an_empty_item_is_one_part_without_a_range() -> None:
    item = opened(0)
    item.to(State.RECEIVING)
    assert hand_out(item) == [None]


def test_the_end_of_a_body_of_unknown_length_is_not_known() -> None:
    item = opened()
    work = answered(item, whole(None))
    assert work.stop is None
    assert item.lengthless


def test_ranges_of_an_unknown_total_are_asked_for_as_a_whole_body() -> None:
    item = opened()
    work_on(item, item.next_part())
    with pytest.raises(StartOver) as raised:
        item.believe(ranged(0, PART, None))
    assert raised.value.whole


def test_a_length_that_comes_after_there_was_none_starts_over() -> None:
    item = opened()
    answered(item, whole(None))
    with pytest.raises(StartOver):
        item.believe(whole(100))


def test_a_size_that_is_not_the_manifests_fails_the_item_with_both() -> None:
    with pytest.raises(ItemError, match=r"the manifest says 100 bytes, its source has 99") as raised:
        opened(100).believe(whole(99))
    assert raised.value.kind is Kind.INTEGRITY


def test_another_version_starts_over_and_says_what_changed() -> None:
    item = opened()
    item.believe(ranged(0, 10, 100, '"a"'))
    with pytest.raises(StartOver, match=r'its ETag was "a" and is "b"'):
        item.believe(ranged(10, 20, 100, '"b"'))
    with pytest.raises(StartOver, match=r"its size was 100 and is 101"):
        item.believe(ranged(10, 20, 101, '"a"'))


def test_whole_bodies_for_several_parts_start_over_as_one() -> None:
    item = opened(3 * PART, eager=True)
    item.to(State.RECEIVING)
    works = [work_on(item, part) for part in hand_out(item)]
    item.believe(whole(3 * PART))
    with pytest.raises(StartOver) as raised:
        item.accept(whole(3 * PART), works[0])
    assert raised.value.whole


def test_an_item_that_starts_over_has_all_its_parts_anew_and_counts_a_try() -> None:
    item = opened()
    work = answered(item, ranged(0, PART, 3 * PART, '"a"'))
    hand_out(item)
    item.received_bytes = 2 * PART
    item.works.discard(work)
    item.to(State.RESTARTING)
    item.start_over()
    assert (item.state, item.starts, item.tries, item.received_bytes) == (State.ASKING, 2, 2, 0)
    assert item.version is None
    assert answered(item, ranged(0, PART, 2 * PART, '"b"')).stop == PART
    assert hand_out(item) == [Part(PART, 2 * PART)]


def test_an_item_that_starts_over_as_a_whole_asks_for_no_ranges() -> None:
    item = opened(3 * PART)
    item.whole_next = True
    item.to(State.RESTARTING)
    item.start_over()
    item.to(State.RECEIVING)
    assert hand_out(item) == [None]
    unsized = opened()
    unsized.whole_next = True
    unsized.to(State.RESTARTING)
    unsized.start_over()
    assert unsized.next_part() is None


def test_a_parked_item_hands_its_parts_out_once_it_is_let_in() -> None:
    item = opened()
    work = work_on(item, item.next_part())
    item.believe(ranged(0, PART, 2 * PART))
    item.park()
    item.works.discard(work)
    assert not item.has_parts
    item.to(State.RECEIVING)
    assert hand_out(item) == [Part(0, PART), Part(PART, 2 * PART)]


def test_states_follow_the_table() -> None:
    item = opened()
    with pytest.raises(AssertionError, match="from ASKING to WHOLE"):
        item.to(State.WHOLE)
    item.to(State.ENDED)
    for state in State:
        with pytest.raises(AssertionError):
            item.to(state)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20))
def test_for_any_activities_a_span_goes_from_the_first_start_to_the_last_end(times: list[tuple[float, float]]) -> None:
    span = Span()
    spans = [(min(pair), max(pair)) for pair in times]
    for began, ended in spans:
        span.add(began, ended)
    expected = max(ended for _, ended in spans) - min(began for began, _ in spans) if spans else 0.0
    assert span.seconds == expected


async def test_works_are_told_apart_by_who_has_them() -> None:
    item = opened(PART)
    task = asyncio.current_task()
    assert task is not None
    works = {Work(item, Part(0, PART), task, 1), Work(item, Part(0, PART), task, 1)}
    assert len(works) == 2
