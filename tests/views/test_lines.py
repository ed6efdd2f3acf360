from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace

from snapshots import LANE, READING, RUN

from app.errors import Kind
from app.views.figures import Pace
from app.views.lines import Flood, JsonFormatter, TextFormatter, progress_figures, progress_line


def record(message: str, *args: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("gpufeed.run", level, __file__, 1, message, args, None)
    made.__dict__.update(extra)
    return made


def test_a_progress_line_says_what_the_display_shows() -> None:
    run = replace(RUN, failed={Kind.TIMEOUT: 1}, reading=replace(READING, ended=False), stopping=True)
    assert progress_line(run, Pace().figures(run)) == (
        "3/10+ items, 1.5 GB at 0.38 GB/s, failed 1 (timeout 1), stopping; cuda:0 processing scene-0001 300 MB / 600 MB"
    )


def test_a_progress_line_without_an_item_names_the_lane_alone() -> None:
    run = replace(RUN, lanes=(replace(LANE, item=None, doing="waiting"),))
    assert progress_line(run, Pace().figures(run)).endswith("0:16 left; cuda:0 waiting")


def test_a_text_line_has_the_level_only_where_it_is_not_info() -> None:
    assert TextFormatter().format(record("all %s", "well")).endswith(" all well")
    line = TextFormatter().format(record("%s failed", "x\n\x1b[31m", level=logging.WARNING))
    assert line.endswith(r" warning: x\n\x1b[31m failed")


def test_a_json_line_is_one_object_with_the_figures_as_fields() -> None:
    figures = progress_figures(RUN, Pace().figures(RUN))
    line = JsonFormatter().format(record("progress\nof it", figures=figures))
    assert "\n" not in line
    row = json.loads(line)
    assert (row["level"], row["logger"], row["message"]) == ("info", "gpufeed.run", "progress\nof it")
    assert (row["finished"], row["total"], row["received_bytes"]) == (2, 10, 1_500_000_000)
    assert row["lanes"][0]["device"] == "cuda:0"


def test_an_exception_in_a_json_line_is_a_field() -> None:
    made = record("odd", level=logging.ERROR)
    try:
        raise ValueError("of mine")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: of mine" in json.loads(JsonFormatter().format(made))["traceback"]
    assert TextFormatter().format(made).splitlines()[-1] == "ValueError: of mine"


def test_failures_beyond_the_first_of_each_kind_are_said_once_and_other_lines_pass() -> None:
    flood = Flood("out")

    def passed(kind: Kind) -> int:
        return sum(flood.filter(record("%s failed", number, kind=kind)) for number in range(100))

    assert passed(Kind.TIMEOUT) == 21
    assert passed(Kind.TIMEOUT) == 0
    assert passed(Kind.TLS) == 21
    assert flood.filter(record("something else"))


def test_the_last_line_of_a_flood_says_where_the_others_are() -> None:
    flood = Flood("my-out")
    made = [record("%s failed: %s", "x", "y", kind=Kind.TLS) for _ in range(21)]
    assert all(map(flood.filter, made))
    assert made[-1].getMessage() == (
        "more tls failures are not shown here; `results my-out --status failed` lists them all"
    )
