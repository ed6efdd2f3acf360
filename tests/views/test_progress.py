from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from snapshots import LANE, READING, RUN, lanes

from app.errors import Kind
from app.run import RunSnapshot
from app.views.figures import Pace
from app.views.progress import render

CROWDED = replace(
    RUN,
    failed={Kind.NOT_FOUND: 1200, Kind.TIMEOUT: 3},
    skipped=5,
    stopping=True,
    lanes=lanes(8, item="scenes/2026/a-very-long-name-of-a-scene/tile-0001.tif"),
)


def shown(snapshot: RunSnapshot, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(render(snapshot, Pace().figures(snapshot), width=width, height=height))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_items_bytes_rate_and_time_left_are_shown() -> None:
    head = shown(RUN)[0]
    assert "2/10 items" in head
    assert "1.5 GB" in head
    assert "0.38 GB/s" in head
    assert "0:16 left" in head


def test_while_the_manifest_is_read_the_total_is_open_and_no_time_is_promised() -> None:
    head = shown(replace(RUN, reading=replace(READING, ended=False)))[0]
    assert "2/10+ items" in head
    assert "left" not in head


def test_a_lane_shows_device_item_progress_connections_and_shares_of_its_time() -> None:
    row = next(line for line in shown(RUN, width=120) if line.startswith("cuda:0"))
    assert row.split() == [
        "cuda:0", "processing", "scene-0001", "300", "MB", "/", "600", "MB", "8", "75%", "25%",
    ]  # fmt: skip


def test_failures_are_shown_by_kind_the_most_frequent_first() -> None:
    assert "failed 1,203: not_found 1,200, timeout 3" in shown(CROWDED)


def test_earlier_outcomes_and_a_stop_are_said() -> None:
    text = "\n".join(shown(CROWDED))
    assert "5 have an outcome from earlier runs" in text
    assert "stopping" in text


def test_a_long_id_is_shortened_in_its_middle() -> None:
    row = next(line for line in shown(CROWDED) if line.startswith("cuda:7"))
    assert "scenes/" in row
    assert "0001.tif" in row
    assert row.count("…") == 1


@pytest.mark.parametrize("width", [40, 50, 60, 69, 70, 80, 100, 120, 200])
def test_eight_lanes_fit_any_width_a_row_each(width: int) -> None:
    lines = shown(CROWDED, width=width)
    assert all(len(line) <= width for line in lines)
    assert len([line for line in lines if line.startswith("cuda:")]) == 8
    assert len(lines) <= 24


@given(lane_count=st.integers(0, 64), height=st.integers(12, 60), width=st.integers(40, 200))
def test_for_any_number_of_lanes_the_display_fits_the_terminal(lane_count: int, height: int, width: int) -> None:
    lines = shown(replace(CROWDED, lanes=lanes(lane_count)), width=width, height=height)
    assert len(lines) <= height
    rows = len([line for line in lines if line.startswith("cuda:")])
    assert rows == lane_count or f"and {lane_count - rows} more lanes" in lines


@given(item=st.text(min_size=1, max_size=300))
def test_for_any_id_a_lane_is_one_row_without_control_characters(item: str) -> None:
    lines = shown(replace(RUN, lanes=(replace(LANE, item=item),)))
    assert len(lines) == len(shown(RUN))
    assert all(line.isprintable() for line in lines)


def test_markup_in_an_id_is_shown_as_it_stands() -> None:
    lines = shown(replace(RUN, lanes=(replace(LANE, item="[red]x[/red]:smile:"),)))
    assert any("[red]x[/red]:smile:" in line for line in lines)


def test_a_lane_without_an_item_and_an_item_without_a_size_have_no_made_up_figures() -> None:
    idle = replace(LANE, item=None, item_bytes=None, item_received_bytes=0, doing="waiting")
    assert next(line for line in shown(replace(RUN, lanes=(idle,))) if "waiting" in line).count("MB") == 0
    unknown = replace(LANE, item_bytes=None)
    assert any("300 MB / ?" in line for line in shown(replace(RUN, lanes=(unknown,))))


def test_before_anything_is_known_there_is_a_display_already() -> None:
    empty = replace(READING, items=0, known_bytes=0, ended=False)
    lines = shown(replace(RUN, reading=empty, done=0, done_bytes=0, received_bytes=0, elapsed_s=0.0, lanes=()))
    assert lines[0].startswith("0/0+ items")
