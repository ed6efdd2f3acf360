from __future__ import annotations

import json
import signal
from dataclasses import replace

from snapshots import LANE, READING, RUN, lanes, summary

from app.errors import Kind
from app.lanes.lane import LaneSnapshot
from app.views.summary import summary_lines, summary_row, verdict


def test_all_done_is_said_without_a_word_of_failures() -> None:
    lines = summary_lines(summary(), "out")
    assert lines[0] == "done      10 of 10 items, 6 GB"
    assert "received  1.5 GB in 4.00 s, 0.38 GB/s" in lines
    assert "cuda:0    2 done; processed 3.00 s, landed 0.50 s, waited for data 1.00 s" in lines
    assert "results   out/results.jsonl" in lines
    assert not any("fail" in line for line in lines)


def test_failures_are_said_by_kind_with_how_to_try_them_again() -> None:
    run = replace(RUN, failed={Kind.TLS: 1}, skipped=4)
    text = "\n".join(summary_lines(summary(run, {Kind.TLS: 2, Kind.RANGE: 1}), "my/out/"))
    assert "failed    3 (tls 2, range 1); 2 of them in earlier runs" in text
    assert "skipped   4 with an outcome from earlier runs" in text
    assert "--retry-failed" in text
    assert "my/out/results.jsonl" in text


def test_an_interrupted_reading_leaves_the_total_open() -> None:
    run = replace(RUN, reading=replace(READING, ended=False))
    assert "of 10+ items" in summary_lines(summary(run), "out")[0]


def said(elapsed_s: float, *lanes: LaneSnapshot) -> str:
    return verdict(replace(RUN, elapsed_s=elapsed_s, lanes=lanes))


def test_the_verdict_names_whichever_held_the_run_up() -> None:
    assert said(11.0, replace(LANE, processed_s=1.0, waited_s=9.0)) == (
        "the sources: the device waited for data 90% of the time"
    )
    assert said(4.0, *lanes(2)) == "the devices: processing took 75% of the time"
    assert said(9.0, LANE) == "start-up: the device could be used after 5.00 s"
    assert said(4.0, replace(LANE, processed_s=0.01, waited_s=0.0)) == ""
    assert said(4.0) == ""


def test_a_lane_that_was_lost_is_marked() -> None:
    run = replace(RUN, lanes=(replace(LANE, doing="lost", failed=1),))
    assert any("1 failed" in line and line.endswith("(lost)") for line in summary_lines(summary(run), "out"))


def test_as_one_object_it_holds_the_same_figures() -> None:
    row = json.loads(json.dumps(summary_row(summary(failed={Kind.TLS: 2}, signalled=signal.SIGINT), "out")))
    assert (row["total"], row["done"], row["failed"]) == (10, 8, {"tls": 2})
    assert row["run"]["lanes"][0]["waited_s"] == 1.0
    assert row["interrupted"] == "SIGINT"
