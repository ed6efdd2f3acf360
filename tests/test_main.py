"""Commands and exit codes, as a shell sees them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shell import ROOT, environment, gpufeed, on_terminal

from app.flags import GROUPS, build_parser
from app.settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with three blobs, of which two are there, and manifests."""
    (tmp_path / "a.bin").write_bytes(b"a" * 100_000)
    (tmp_path / "b.bin").write_bytes(b"b" * 50_000)
    (tmp_path / "good.txt").write_text("a.bin\nb.bin\n")
    (tmp_path / "bad.jsonl").write_text(
        "".join(json.dumps({"id": name, "url": f"{name}.bin"}) + "\n" for name in ("a", "b", "missing"))
    )
    return tmp_path


OPERATOR_ERRORS = {
    "unknown device": (("--devices", "cuda:99"), r"unknown device 'cuda:99'; there are: cpu, cpu:0, .*"),
    "unknown processor": (("--processor", "nosuch:thing"), r"--processor nosuch:thing .*No module named 'nosuch'"),
    "unknown built-in": (("--processor", "digset"), r"unknown processor 'digset'; did you mean digest\?.*"),
    "bad size": (("--host-buffer", "lots"), r"--host-buffer 'lots': .* is not a size; write it like 512MiB.*"),
    "bad choice": (("--loop", "trio"), r"--loop 'trio': .*'auto', 'uvloop' or 'asyncio'"),
    "output not writable": (("--output", "good.txt/out"), r".*/good.txt/out cannot be written to: Not a directory"),
    "least host buffer": (("--host-buffer", "1MiB"), r"--host-buffer 1MiB is under two slabs .*128MiB is the least.*"),
    "device buffer without GPU": (("--devices", "cpu", "--device-buffer", "1GiB"), r"--device-buffer is about GPUs.*"),
    "unknown flag": (("--frobnicate",), r"unrecognized arguments: --frobnicate.*"),
    "flag without value": (("--output",), r"argument --output: expected one argument.*"),
    "json and display": (("--progress", "on", "--log-format", "json"), r"--progress on .* --log-format json .*"),
}


@pytest.mark.parametrize(("flags", "said"), OPERATOR_ERRORS.values(), ids=OPERATOR_ERRORS)
def test_an_error_of_the_operator_is_one_line_and_exit_code_2(folder: Path, flags: tuple[str, ...], said: str) -> None:
    ended = gpufeed(folder, "run", "good.txt", *flags)
    assert ended.returncode == 2
    assert re.fullmatch(f"gpufeed: {said}\n", ended.stderr)
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nowhere.txt"), "manifest 'nowhere.txt' is not found"),
        (("run",), "there is no manifest: .*"),
        (("nowhere.txt",), "unknown command 'nowhere.txt'; there are run, results, demo, doctor; .*"),
        (("results", "nowhere"), "nowhere has no ledger.sqlite; .*"),
        (("results", "--format", "xml"), "argument --format: invalid choice: 'xml' .*"),
        (("results", "nowhere", "--to", "good.txt/x"), "(--to good.txt/x cannot be written: Not a directory)"),
    ],
)
def test_a_command_that_cannot_be_is_one_line_and_exit_code_2(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    ended = gpufeed(folder, *arguments)
    assert ended.returncode == 2
    assert re.fullmatch(f"gpufeed: {said}\n", ended.stderr)


def test_the_mistake_in_a_line_of_the_manifest_is_named(folder: Path) -> None:
    (folder / "odd.txt").write_text("a.bin\nftp://example.org/b\n")
    ended = gpufeed(folder, "run", "odd.txt")
    assert ended.returncode == 2
    assert re.fullmatch(r"gpufeed: odd\.txt:2: .*ftp.*\n", ended.stderr)


def test_uvloop_asked_for_and_not_installed_is_said(folder: Path) -> None:
    (folder / "without").mkdir()
    (folder / "without" / "uvloop.py").write_text("raise ImportError('as if it were not installed')")
    without = {"PYTHONPATH": f"{folder / 'without'}{os.pathsep}{ROOT}"}
    ended = gpufeed(folder, "run", "good.txt", "--loop", "uvloop", **without)
    assert ended.returncode == 2
    assert re.fullmatch("gpufeed: --loop uvloop: it is not installed; .*\n", ended.stderr)
    assert gpufeed(folder, "run", "good.txt", "--processor", "none", **without).returncode == 0


def test_without_a_manifest_a_short_usage_names_the_demo(folder: Path) -> None:
    ended = gpufeed(folder)
    assert ended.returncode == 2
    assert "python -m app demo" in ended.stderr
    assert len(ended.stderr.splitlines()) < 10


def test_a_manifest_in_the_environment_is_run(folder: Path) -> None:
    ended = gpufeed(folder, APP_MANIFEST="good.txt", APP_PROCESSOR="digest")
    assert ended.returncode == 0
    assert len((folder / "out" / "results.jsonl").read_text().splitlines()) == 2


def test_a_manifest_in_the_env_file_is_run_and_flags_may_follow_at_once(folder: Path) -> None:
    (folder / ".env").write_text("APP_MANIFEST=good.txt\nAPP_PROCESSOR=stats\n")
    assert gpufeed(folder, "--processor", "none", "--output", "there").returncode == 0
    assert (folder / "there" / "results.jsonl").exists()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_run_whose_items_are_all_done_says_so_and_exits_0(folder: Path, loop: str) -> None:
    ended = gpufeed(folder, "run", "good.txt", "--processor", "digest", "--loop", loop)
    assert ended.returncode == 0
    assert "done      2 of 2 items, 150 KB" in ended.stdout
    assert "out/results.jsonl" in ended.stdout
    assert "retry" not in ended.stdout
    assert gpufeed(folder, "run", "good.txt", "--processor", "digest").returncode == 0


def test_a_run_with_failed_items_names_them_and_exits_1_also_when_it_is_continued(folder: Path) -> None:
    ended = gpufeed(folder, "run", "bad.jsonl", "--processor", "none")
    assert ended.returncode == 1
    assert re.search(r"warning: missing failed: not_found: ", ended.stderr)
    assert "failed    1 (not_found 1)" in ended.stdout
    assert "--retry-failed" in ended.stdout
    again = gpufeed(folder, "run", "bad.jsonl", "--processor", "none")
    assert again.returncode == 1
    assert "1 of them in earlier runs" in again.stdout
    assert "skipped   3 with an outcome from earlier runs" in again.stdout


def test_the_same_failure_many_times_does_not_flood_the_log(folder: Path) -> None:
    (folder / "many.txt").write_text("".join(f"missing-{number}\n" for number in range(200)))
    ended = gpufeed(folder, "run", "many.txt", "--processor", "none")
    assert ended.returncode == 1
    assert len(re.findall("warning: missing-.* failed: not_found", ended.stderr)) == 20
    assert len(re.findall("more not_found failures are not shown here", ended.stderr)) == 1


def test_json_logs_are_objects_a_line_and_the_summary_is_one(folder: Path) -> None:
    ended = gpufeed(folder, "run", "bad.jsonl", "--processor", "none", "--log-format", "json")
    rows = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [row["level"] for row in rows if row["message"].startswith("missing failed")] == ["warning"]
    assert all({"time", "level", "logger", "message"} <= row.keys() for row in rows)
    (summary,) = [json.loads(line) for line in ended.stdout.splitlines()]
    assert (summary["done"], summary["failed"], summary["total"]) == (2, {"not_found": 1}, 3)


def test_an_error_among_json_logs_is_an_object_too(folder: Path) -> None:
    ended = gpufeed(folder, "run", "nowhere.txt", "--log-format", "json")
    assert ended.returncode == 2
    row = json.loads(ended.stderr)
    assert (row["level"], row["message"]) == ("error", "manifest 'nowhere.txt' is not found")


def test_a_dry_run_says_counts_and_sizes_and_leaves_nothing(folder: Path) -> None:
    lines = [{"url": "a.bin", "size": 100_000}, {"url": "http://127.0.0.1:9/x", "size": 50}, {"url": "c"}]
    (folder / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = sorted(folder.iterdir())
    ended = gpufeed(folder, "run", "m.jsonl", "--dry-run")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "3 items, 100 KB in known sizes, 1 without a size; nothing was fetched\n"
    assert sorted(folder.iterdir()) == before
    as_json = gpufeed(folder, "run", "m.jsonl", "--dry-run", "--log-format", "json")
    assert json.loads(as_json.stdout)["items"] == 3


def test_a_dry_run_counts_duplicates_and_refuses_a_wrong_line(folder: Path) -> None:
    counted = gpufeed(folder, "run", "-", "--dry-run", given="a.bin\nb.bin\na.bin\n")
    assert counted.stdout.startswith("2 items, 1 duplicate line, ")
    wrong = gpufeed(folder, "run", "-", "--dry-run", given="a.bin\nftp://b\n")
    assert wrong.returncode == 2
    assert re.fullmatch(r"gpufeed: .*:2: .*\n", wrong.stderr)


def test_results_come_in_every_format_to_standard_output_or_a_file(folder: Path) -> None:
    gpufeed(folder, "run", "bad.jsonl", "--processor", "digest")
    rows = [json.loads(line) for line in gpufeed(folder, "results", "out").stdout.splitlines()]
    assert [row["id"] for row in rows] == ["a", "b", "missing"]
    failed = gpufeed(folder, "results", "--status", "failed", "--format", "csv").stdout
    assert [row["error_kind"] for row in csv.DictReader(io.StringIO(failed))] == ["not_found"]
    assert gpufeed(folder, "results", "out", "--format", "parquet", "--to", "r.parquet").returncode == 0
    assert (folder / "r.parquet").read_bytes()[:4] == b"PAR1"
    gpufeed(folder, "results", "out", "--format", "manifest", "--to", "again.jsonl")
    assert [json.loads(line)["id"] for line in (folder / "again.jsonl").read_text().splitlines()] == ["missing"]
    done = gpufeed(folder, "results", "out", "--format", "manifest", "--status", "done").stdout
    assert [json.loads(line)["id"] for line in done.splitlines()] == ["a", "b"]


def test_results_to_a_device_write_to_it_and_leave_it_there(folder: Path) -> None:
    gpufeed(folder, "run", "good.txt", "--processor", "none")
    os.mkfifo(folder / "pipe")
    with subprocess.Popen(["cat", str(folder / "pipe")], stdout=subprocess.PIPE, text=True) as reader:
        assert gpufeed(folder, "results", "out", "--to", "pipe").returncode == 0
        assert reader.stdout is not None
        assert len(reader.stdout.read().splitlines()) == 2
    assert (folder / "pipe").is_fifo()


def test_results_whose_reader_leaves_early_end_quietly(folder: Path) -> None:
    gpufeed(folder, "run", "good.txt", "--processor", "none")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "app", "results", "out"],
            cwd=folder, env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True, timeout=50,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_parquet_is_not_written_to_a_terminal(folder: Path) -> None:
    gpufeed(folder, "run", "good.txt", "--processor", "none")
    code, said = on_terminal(folder, "results", "out", "--format", "parquet")
    assert code == 2
    assert "gpufeed: parquet is not for a terminal" in said


def test_on_a_terminal_the_run_is_shown_live_and_the_cursor_comes_back(folder: Path) -> None:
    (folder / "patient.py").write_text("import time\ndef process(blob, item):\n    time.sleep(0.6)\n")
    code, said = on_terminal(folder, "run", "good.txt", "--processor", "patient:process")
    assert code == 0
    assert "/2 items" in said
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 1
    assert said.rindex("\x1b[?25h") < said.index("done      2 of 2 items")


def test_the_display_can_be_switched_off(folder: Path) -> None:
    code, said = on_terminal(folder, "run", "good.txt", "--processor", "none", "--progress", "off")
    assert code == 0
    assert "\x1b[" not in said


def test_a_mistake_of_our_own_shows_its_traceback_and_exits_3(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import json\njson.dumps = None\n")
    path = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    ended = gpufeed(folder, "run", "good.txt", "--dry-run", "--log-format", "json", **path)
    assert ended.returncode == 3
    assert "Traceback" in ended.stderr
    assert "the same command continues" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", [("--help",), ("run", "--help"), ("run", "--frob"), ("run", "x", "--slab-size", "1")], ids=" ".join
)
def test_help_and_usage_errors_import_nothing_heavy(folder: Path, arguments: tuple[str, ...]) -> None:
    said = gpufeed(folder, *arguments, python=("-X", "importtime")).stderr
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines() if line.startswith("import time:")}
    assert not imported & {"torch", "aiohttp", "rich", "uvloop", "sqlite3"}


def test_a_run_without_a_display_imports_neither_rich_nor_torch(folder: Path) -> None:
    said = gpufeed(folder, "run", "good.txt", "--processor", "none", python=("-X", "importtime")).stderr
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines() if line.startswith("import time:")}
    assert "app.run" in imported
    assert not imported & {"torch", "rich"}


def test_version_and_help_exit_0(folder: Path) -> None:
    assert gpufeed(folder, "--version").stdout == "gpufeed 0.1.0\n"
    helped = gpufeed(folder, "--help")
    assert helped.returncode == 0
    assert all(command in helped.stdout for command in ("run", "results", "demo", "doctor"))


def test_the_help_of_run_fits_80_columns_and_shows_every_field_with_its_default(folder: Path) -> None:
    said = gpufeed(folder, "run", "--help", COLUMNS="80").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert all(f"--{name.replace('_', '-')}" in said for name in Settings.model_fields if name != "manifest")
    flat = " ".join(said.split())
    assert "(default: 8MiB)" in flat
    assert "40 % of what is free" in flat
    assert "(default: 30)" in flat


def test_every_field_is_in_one_group_of_the_help() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted([*grouped, "manifest"]) == sorted(Settings.model_fields)


def test_only_flags_that_are_given_reach_the_settings() -> None:
    parser = build_parser("gpufeed")
    assert vars(parser.parse_args(["run"])) == {"command": "run"}
    given = parser.parse_args(["run", "m.txt", "--no-fresh", "--slab-size", "4MiB"])
    assert vars(given) == {"command": "run", "manifest": "m.txt", "fresh": False, "slab_size": "4MiB"}
    assert parser.parse_args(["run", "--manifest", "-"]).manifest == "-"
