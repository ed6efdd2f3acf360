from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from shell import gpufeed

from app.items import parse_size


def outcomes(output: Path) -> dict[str, dict[str, object]]:
    rows = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
    return {row["id"]: row for row in rows}


def run_demo(folder: Path, *flags: str, **more: str) -> subprocess.CompletedProcess[str]:
    return gpufeed(folder, "demo", "--devices", "cpu", *flags, **more)


def test_five_blobs_are_done_one_fails_on_purpose_and_it_can_be_shown_again(tmp_path: Path) -> None:
    first = run_demo(tmp_path)
    assert first.returncode == 0
    found = outcomes(tmp_path / "out-demo")
    assert sorted(found) == [f"blob-{number}" for number in range(1, 7)]
    assert found["blob-4"]["error"]["kind"] == "not_found"  # type: ignore[index]
    for blob_id, bits in (("blob-1", 8), ("blob-2", 7), ("blob-3", 6), ("blob-5", 4), ("blob-6", 1)):
        result = found[blob_id]["result"]
        assert isinstance(result, dict)
        assert result["count"] == parse_size("64MiB")
        assert result["entropy"] == pytest.approx(bits, abs=0.001)
    assert "blob-4 failed on purpose" in first.stdout
    assert "out-demo/results.jsonl" in first.stdout
    # What is set for one's own runs makes it no other demo.
    again = run_demo(tmp_path, APP_PROCESSOR="digest", APP_LIMIT="1", APP_MANIFEST="nowhere", APP_RETRY_FAILED="1")
    assert again.returncode == 0
    assert outcomes(tmp_path / "out-demo").keys() == found.keys()
    assert len(list(tmp_path.glob("out-demo.*"))) == 1


def test_an_output_that_cannot_be_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run_demo(tmp_path, "--output", "file/out")
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "Traceback" not in ended.stderr
