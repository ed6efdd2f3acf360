import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ledgers import item, opened, outcome, read_in
from pyarrow import parquet

from app.errors import Kind, RunError, UsageError
from app.exports import COLUMNS, as_row, export, export_manifest, read_outcomes, write_results
from app.items import Failure, Item, Outcome

ROOT = Path(__file__).parent.parent
DONE = outcome("a", result={"mean": [1.5, "ü"]})
FAILED = outcome("b", kind=Kind.DECODE)


def with_message(message: str) -> Outcome:
    fields = {name: getattr(FAILED, name) for name in FAILED.__slots__}
    return Outcome(**fields | {"error": Failure(Kind.PROCESSOR, message)})


def exported(form: str, *outcomes: Outcome) -> io.BytesIO:
    out = io.BytesIO()
    export(outcomes, form, out)
    out.seek(0)
    return out


def test_a_row_is_as_the_contract_says_in_its_order():
    assert list(as_row(DONE).items()) == [
        ("id", "a"),
        ("url", "https://example.org/a"),
        ("status", "done"),
        ("bytes", 100),
        ("device", "cpu:0"),
        ("attempts", 1),
        ("result", {"mean": [1.5, "ü"]}),
        ("artifacts", ["artifacts/a.bin"]),
        ("error", None),
        ("seconds", {"receive": 1.0, "land": 2.0, "process": 3.0}),
        ("finished_at", "2026-01-01T00:00:00Z"),
    ]
    assert as_row(FAILED)["error"] == {"kind": "decode", "message": "no", "traceback": "Traceback …"}


def test_jsonl_has_a_row_a_line():
    lines = exported("jsonl", DONE, with_message("two\nlines \udcff")).read().splitlines()
    assert [json.loads(line) for line in lines] == [as_row(DONE), as_row(with_message("two\nlines \udcff"))]


def test_csv_has_a_column_for_each_field():
    text = exported("csv", DONE, with_message('"two",\nlines \udcff')).read().decode()
    done, failed = csv.DictReader(io.StringIO(text, newline=""))
    assert tuple(done) == COLUMNS
    assert json.loads(done["result"]) == DONE.result
    assert json.loads(done["artifacts"]) == ["artifacts/a.bin"]
    assert (done["error_kind"], done["seconds_land"]) == ("", "2.0")
    assert (failed["error_kind"], failed["error_message"]) == ("processor", '"two",\nlines \\udcff')
    assert failed["result"] == ""


def test_csv_leaves_the_output_open():
    out = exported("csv")
    assert not out.closed
    assert out.read().decode().split() == [",".join(COLUMNS)]


@pytest.mark.parametrize("outcomes", [(), (FAILED,), (DONE, with_message("\udcff"))])
def test_parquet_has_the_same_schema_whatever_the_outcomes(outcomes):
    table = parquet.read_table(exported("parquet", *outcomes))
    assert table.schema.names == list(COLUMNS)
    types = {str(field.type) for field in table.schema if field.name not in ("bytes", "attempts", "artifacts")}
    assert types == {"string", "double"}
    assert table["id"].to_pylist() == [one.id for one in outcomes]


def test_parquet_keeps_values():
    (row, _) = parquet.read_table(exported("parquet", DONE, FAILED)).to_pylist()
    assert json.loads(row["result"]) == DONE.result
    assert row["artifacts"] == ["artifacts/a.bin"]
    assert (row["error_kind"], row["bytes"], row["seconds_process"]) == (None, 100, 3.0)


def test_parquet_is_written_in_groups_of_bounded_size():
    file = parquet.ParquetFile(exported("parquet", *[DONE] * 25_000))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [10_000, 10_000, 5_000]
    file = parquet.ParquetFile(exported("parquet", *[outcome("a", result="x" * (20 << 20))] * 4))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2, 2]


def test_parquet_goes_through_a_pipe():
    reading, writing = os.pipe()
    with open(reading, "rb") as source:
        with open(writing, "wb") as out:
            export([DONE], "parquet", out)
        assert parquet.read_table(io.BytesIO(source.read())).num_rows == 1


def test_parquet_without_pyarrow_says_what_to_install():
    program = """
import io, sys
sys.modules["pyarrow"] = None
from app.errors import UsageError
from app.exports import export
try:
    export([], "parquet", io.BytesIO())
except UsageError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert said.stdout == "parquet needs pyarrow: pip install 'gpufeed[parquet]'\n"


def test_a_manifest_line_holds_what_the_item_has_and_no_more():
    out = io.BytesIO()
    export_manifest(
        [item("a", size=3, digests={"md5": "1" * 32}, headers={"X": "y"}, params={"p": [1]}), Item("b", None)], out
    )
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {
            "id": "a",
            "url": "https://example.org/a",
            "size": 3,
            "md5": "1" * 32,
            "headers": {"X": "y"},
            "params": {"p": [1]},
        },
        {"id": "b"},
    ]


async def test_results_are_written_whole_in_place_of_older_ones(tmp_path):
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, item("a"), item("b"), item("c"))
        await ledger.record(DONE)
        write_results(tmp_path)
        await ledger.record(FAILED)
        write_results(tmp_path)
    assert [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()] == [
        as_row(DONE),
        as_row(FAILED),
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


async def test_results_that_cannot_be_written_stop_the_run(tmp_path):
    async with await opened(tmp_path):
        (tmp_path / "results.jsonl").mkdir()
        with pytest.raises(RunError, match=r"results\.jsonl cannot be written"):
            write_results(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_reading_what_is_no_ledger_is_a_usage_error(tmp_path, content):
    (tmp_path / "ledger.sqlite").write_bytes(content)
    with pytest.raises(UsageError, match="cannot be used as a ledger"):
        list(read_outcomes(tmp_path))


async def test_reading_while_a_run_writes_sees_what_is_committed_later_too(tmp_path):
    names = [f"i{n:04}" for n in range(2500)]
    async with await opened(tmp_path) as ledger:
        await read_in(ledger, *map(item, names))
        await ledger.record_all([outcome(name) for name in names[:2000]])
        outcomes = read_outcomes(tmp_path)
        seen = [next(outcomes).id]
        await ledger.record_all([outcome(name) for name in names[2000:]])
        assert seen + [one.id for one in outcomes] == names


def test_a_folder_without_a_ledger_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"has no ledger\.sqlite"):
        read_outcomes(tmp_path)
