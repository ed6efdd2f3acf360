from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import LANE, READING, RUN

from app.errors import Kind
from app.views.figures import Pace, busy_share, seconds_left
from app.views.words import duration, kinds_text, printable, shortened


def test_the_rate_is_that_of_the_last_seconds_not_of_the_whole_run() -> None:
    pace = Pace()
    for second in range(1, 21):
        received = 1_000_000_000 * min(second, 10)
        figures = pace.figures(replace(RUN, elapsed_s=float(second), received_bytes=received))
        assert figures.bytes_per_s == pytest.approx(1e9 if second <= 10 else max(0, 15 - second) * 2e8)


def test_the_rate_never_falls_below_zero_when_an_item_starts_over() -> None:
    pace = Pace()
    pace.figures(replace(RUN, elapsed_s=1.0, received_bytes=500))
    assert pace.figures(replace(RUN, elapsed_s=9.0, received_bytes=0)).bytes_per_s == 0.0


def test_what_is_left_is_told_by_bytes_where_the_sources_are_the_limit() -> None:
    # 8 items of 600 MB less 300 MB that are here; the two that are done took 2 s each
    assert seconds_left(RUN, 100e6) == pytest.approx(45.0)


def test_what_is_left_is_told_by_items_where_the_device_is_the_limit() -> None:
    assert seconds_left(RUN, 10e9) == pytest.approx(16.0)
    assert seconds_left(RUN, 0.0) == pytest.approx(16.0)


def test_sizes_that_the_manifest_does_not_say_are_taken_from_items_that_are_done() -> None:
    run = replace(RUN, reading=replace(READING, known_bytes=0, without_size=10))
    assert seconds_left(run, 100e6) == pytest.approx(45.0)


def test_nothing_is_told_before_there_is_anything_to_go_by() -> None:
    fresh = replace(RUN, done=0, done_bytes=0, reading=replace(READING, known_bytes=0, without_size=10))
    assert seconds_left(fresh, 1e9) is None
    assert seconds_left(replace(RUN, reading=replace(READING, ended=False)), 1e9) is None
    assert seconds_left(replace(RUN, stopping=True), 1e9) is None
    all_here = replace(RUN, done=0, done_bytes=0, received_bytes=6_000_000_000)
    assert seconds_left(all_here, 1e9) is None


def test_no_time_is_left_when_every_item_has_an_outcome() -> None:
    assert seconds_left(replace(RUN, done=7, failed={Kind.TLS: 1}, skipped=2), 1e9) == 0.0


def test_the_busy_share_is_unknown_before_the_device_began() -> None:
    assert busy_share(LANE) == pytest.approx(0.75)
    assert busy_share(replace(LANE, processed_s=0.0, waited_s=0.0)) is None


@given(text=st.text(max_size=60), width=st.integers(0, 60))
def test_for_any_text_the_shortened_one_fits_and_keeps_both_ends(text: str, width: int) -> None:
    short = shortened(text, width)
    assert len(short) <= max(width, 0)
    if len(text) <= width:
        assert short == text
    elif width >= 3:
        head, _, tail = short.partition("…") if "…" not in text else (short[:1], "", short[-1:])
        assert text.startswith(head)
        assert text.endswith(tail)


@given(text=st.text())
def test_for_any_text_the_printable_one_is_printable_and_visible_text_stays(text: str) -> None:
    assert printable(text).isprintable()
    if text.isprintable():
        assert printable(text) == text


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("a\x1b[31m\nb\udcff") == "a\\x1b[31m\\nb\\udcff"


@pytest.mark.parametrize(("seconds", "said"), [(0, "0:00"), (59.6, "1:00"), (125, "2:05"), (3600, "1:00:00")])
def test_durations_are_minutes_and_seconds(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_kinds_are_ordered_by_how_often_they_came() -> None:
    assert kinds_text({Kind.TLS: 1, Kind.CONNECT: 1, Kind.RANGE: 2000}) == "range 2,000, connect 1, tls 1"
