"""One run after another in the same output folder: what is done again, what is refused, what is written."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from origin import Origin
from runs import DEADLINE_S, HOLDING, LOGGING, imported, make, results, run, write_manifest, write_module

from app.errors import RunError, UsageError


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = sys.path.copy()
    monkeypatch.chdir(tmp_path)
    yield
    sys.path[:] = before


@pytest.fixture
def logging_flags(tmp_path: Path) -> dict[str, Any]:
    """A processor that logs what it is called for."""
    module = write_module(tmp_path, LOGGING)
    return {"processor": f"{module}:Logging", "processor_args": {"log": str(tmp_path / "log")}}


def logged(folder: Path) -> list[str]:
    """Names of the items that the processor was called for, sorted, each as often as it was."""
    path = folder / "log"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def test_a_run_processes_every_item_on_either_loop(tmp_path: Path, run_on: Any) -> None:
    manifest = write_manifest(tmp_path, "a", "b", "c")
    summary = run_on(run(tmp_path, manifest, processor="digest"))
    assert (summary.counts.done, summary.counts.total, summary.counts.failed) == (3, 3, {})
    assert (summary.snapshot.done, summary.snapshot.done_bytes, summary.signalled) == (3, 300, None)
    assert set(results(tmp_path)) == {"a", "b", "c"}


async def test_results_hold_what_the_contract_says(tmp_path: Path) -> None:
    await run(tmp_path, write_manifest(tmp_path, "a", missing=("gone",)))
    done, failed = results(tmp_path)["a"], results(tmp_path)["gone"]
    keys = "id, url, status, bytes, device, attempts, result, artifacts, error, seconds, finished_at"
    assert ", ".join(done) == ", ".join(failed) == keys
    assert (done["status"], done["bytes"], done["device"], done["attempts"]) == ("done", 100, "cpu", 1)
    assert (done["result"], done["artifacts"], done["error"]) == (None, [], None)
    assert list(done["seconds"]) == ["receive", "land", "process"]
    assert failed["status"] == "failed"
    assert failed["error"]["kind"] == "not_found"
    assert list(failed["error"]) == ["kind", "message", "traceback"]
    assert failed["result"] is None


async def test_the_same_command_does_only_what_has_no_outcome(tmp_path: Path, logging_flags: dict[str, Any]) -> None:
    manifest = write_manifest(tmp_path, "a", "b", "c", "d")
    first = await run(tmp_path, manifest, limit=2, **logging_flags)
    assert first.counts.done == 2
    second = await run(tmp_path, manifest, **logging_flags)
    assert (second.counts.done, second.snapshot.done, second.snapshot.skipped) == (4, 2, 2)
    third = await run(tmp_path, manifest, **logging_flags)
    assert (third.counts.done, third.snapshot.done, third.snapshot.skipped) == (4, 0, 4)
    assert logged(tmp_path) == ["a", "b", "c", "d"]
    assert set(results(tmp_path)) == {"a", "b", "c", "d"}


async def test_the_first_n_are_the_first_n_in_the_manifest(tmp_path: Path, logging_flags: dict[str, Any]) -> None:
    await run(tmp_path, write_manifest(tmp_path, *"edcba"), limit=3, **logging_flags)
    assert logged(tmp_path) == ["c", "d", "e"]


async def test_failed_items_stay_failed_unless_they_are_to_be_done_again(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path, "a", missing=("late",))
    assert (await run(tmp_path, manifest)).counts.failed == {"not_found": 1}
    (tmp_path / "late").write_text("here now")
    again = await run(tmp_path, manifest)
    assert (again.counts.failed, again.snapshot.skipped) == ({"not_found": 1}, 2)
    retried = await run(tmp_path, manifest, retry_failed=True)
    assert (retried.counts.failed, retried.counts.done, retried.snapshot.skipped) == ({}, 2, 1)
    assert results(tmp_path)["late"]["status"] == "done"


async def test_a_manifest_may_grow(tmp_path: Path, logging_flags: dict[str, Any]) -> None:
    await run(tmp_path, write_manifest(tmp_path, "a", "b"), **logging_flags)
    summary = await run(tmp_path, write_manifest(tmp_path, "a", "b", "c"), **logging_flags)
    assert (summary.counts.done, summary.counts.total) == (3, 3)
    assert logged(tmp_path) == ["a", "b", "c"]


async def test_what_left_the_manifest_is_not_done_any_more(tmp_path: Path, logging_flags: dict[str, Any]) -> None:
    manifest = write_manifest(tmp_path, "a", "b", "c")
    await run(tmp_path, manifest, limit=1, **logging_flags)
    summary = await run(tmp_path, write_manifest(tmp_path, "c"), **logging_flags)
    assert logged(tmp_path) == ["a", "c"]
    assert summary.counts.total == 1


@pytest.mark.parametrize("changed", [{"url": "other"}, {"sha256": "0" * 64}, {"params": {"x": 2}}])
async def test_an_item_that_is_another_one_now_is_refused_by_name(tmp_path: Path, changed: dict[str, Any]) -> None:
    write_manifest(tmp_path, "a", "other")
    manifest = tmp_path / "manifest.jsonl"
    row = {"id": "first", "url": "a", "params": {"x": 1}}
    manifest.write_text(json.dumps(row) + "\n")
    await run(tmp_path, manifest)
    manifest.write_text(json.dumps(row | changed) + "\n")
    with pytest.raises(UsageError, match="first"):
        await run(tmp_path, manifest)


async def test_another_processor_or_other_arguments_are_refused_with_both_named(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path, "a")
    await run(tmp_path, manifest, processor="digest")
    with pytest.raises(UsageError, match=r"(?s)digest.*none|none.*digest"):
        await run(tmp_path, manifest, processor="none")
    with pytest.raises(UsageError, match="md5"):
        await run(tmp_path, manifest, processor="digest", processor_args={"algorithm": "md5"})


async def test_a_fresh_run_moves_the_old_folder_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = write_manifest(tmp_path, "a")
    await run(tmp_path, manifest, processor="digest")
    with caplog.at_level(logging.INFO):
        summary = await run(tmp_path, manifest, processor="none", fresh=True)
    assert summary.snapshot.done == 1
    [aside] = {name for name in os.listdir(tmp_path) if name.startswith("out")} - {"out"}
    assert "sha256" in results(tmp_path, aside)["a"]["result"]
    assert aside in caplog.text


async def test_a_second_run_on_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    manifest, module = write_manifest(tmp_path, "a"), write_module(tmp_path, HOLDING)
    holding = imported(tmp_path, module).Holding
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        first = group.create_task(run(tmp_path, manifest, processor=f"{module}:Holding"))
        assert await asyncio.to_thread(holding.inside.wait, DEADLINE_S)
        with pytest.raises(UsageError, match="out"):
            await run(tmp_path, manifest, processor=f"{module}:Holding")
        holding.released.set()
    assert first.result().counts.done == 1


async def test_a_wrong_line_is_said_with_file_and_number_before_anything_is_fetched(
    tmp_path: Path, logging_flags: dict[str, Any]
) -> None:
    manifest = write_manifest(tmp_path, "a", "b")
    with manifest.open("a") as lines:
        lines.write("gopher://old/one\n")
    with pytest.raises(UsageError, match=r"manifest\.txt:3: .*gopher"):
        await run(tmp_path, manifest, **logging_flags)
    assert logged(tmp_path) == []
    manifest.write_text("a\nb\n")
    assert (await run(tmp_path, manifest, **logging_flags)).counts.done == 2


async def test_lines_that_stand_there_twice_are_one_item_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_manifest(tmp_path, "a", "b")
    (tmp_path / "manifest.txt").write_text("a\nb\na\na\n")
    with caplog.at_level(logging.INFO):
        summary = await run(tmp_path, tmp_path / "manifest.txt")
    assert (summary.counts.total, summary.snapshot.reading.duplicates) == (2, 2)
    assert "lines of the manifest that repeat another: 2" in caplog.text


async def test_an_empty_manifest_is_done_at_once(tmp_path: Path) -> None:
    summary = await run(tmp_path, write_manifest(tmp_path))
    assert summary.counts.total == 0
    assert results(tmp_path) == {}


async def test_a_manifest_from_a_server_names_blobs_beside_it(tmp_path: Path, origin: Origin) -> None:
    manifest = origin.put("/data/list.jsonl", b'{"url": "a.bin"}\n{"url": "sub/b.bin", "size": 70000}\n')
    origin.put("/data/a.bin", b"a" * 300_000)
    origin.put("/data/sub/b.bin", b"b" * 70_000)
    summary = await run(tmp_path, manifest, processor="digest")
    assert summary.counts.done == 2
    assert {name: row["bytes"] for name, row in results(tmp_path).items()} == {"a.bin": 300_000, "b.bin": 70_000}


async def test_a_manifest_that_no_server_has_is_the_operators_to_mend(tmp_path: Path, origin: Origin) -> None:
    with pytest.raises(UsageError, match=r"the manifest cannot be had: .*404"):
        await run(tmp_path, origin.url("/nowhere.txt"))


async def test_a_manifest_whose_server_is_away_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the manifest cannot be had"):
        await run(tmp_path, "http://127.0.0.1:1/list.txt")


async def test_lanes_work_at_the_same_time_and_share_the_items(tmp_path: Path) -> None:
    module = write_module(
        tmp_path,
        "import threading\n"
        "both = threading.Barrier(2)\n"
        "class Meeting:\n"
        "    needs_torch = False\n"
        "    def open(self, device):\n"
        "        self.name = device.name\n"
        "    def process(self, blob, item):\n"
        "        both.wait(30)\n"
        "        return self.name\n",
    )
    manifest = write_manifest(tmp_path, *(f"{index:02}" for index in range(10)))
    summary = await run(tmp_path, manifest, processor=f"{module}:Meeting", devices="cpu:0,cpu:1", read_ahead=0)
    assert summary.counts.done == 10
    found = results(tmp_path)
    assert sorted(row["result"] for row in found.values()) == ["cpu:0"] * 5 + ["cpu:1"] * 5
    assert all(row["device"] == row["result"] for row in found.values())


async def test_a_run_can_be_stopped_and_continued(tmp_path: Path) -> None:
    manifest, module = write_manifest(tmp_path, "a", "b", "c"), write_module(tmp_path, HOLDING)
    holding = imported(tmp_path, module).Holding
    flags = {"processor": f"{module}:Holding", "read_ahead": 0}
    first = make(tmp_path, manifest, **flags)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        task = group.create_task(first.execute())
        assert await asyncio.to_thread(holding.inside.wait, DEADLINE_S)
        assert not first.snapshot().stopping
        first.stop()
        assert first.snapshot().stopping
        holding.released.set()
    assert 1 <= task.result().counts.done < 3
    assert (await run(tmp_path, manifest, **flags)).counts.done == 3


async def test_a_processor_that_cannot_be_opened_is_the_operators_to_mend(tmp_path: Path) -> None:
    module = write_module(
        tmp_path,
        "class Broken:\n"
        "    needs_torch = False\n"
        "    def open(self, device):\n"
        "        raise FileNotFoundError('weights.pt')\n"
        "    def process(self, blob, item): ...\n",
    )
    with pytest.raises(UsageError, match=r"cannot be opened on cpu: FileNotFoundError: weights.pt"):
        await run(tmp_path, write_manifest(tmp_path, "a"), processor=f"{module}:Broken")


async def test_artifacts_that_cannot_be_written_end_the_run_with_nothing_marked_done(tmp_path: Path) -> None:
    module = write_module(tmp_path, "def process(blob, item):\n    return bytes(blob)\nprocess.needs_torch = False\n")
    manifest, flags = write_manifest(tmp_path, "a"), {"processor": f"{module}:process"}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "artifacts").write_text("in the way")
    with pytest.raises(RunError, match=r"artifacts in .* cannot be written"):
        await run(tmp_path, manifest, **flags)
    (tmp_path / "out" / "artifacts").unlink()
    summary = await run(tmp_path, manifest, **flags)
    assert (summary.counts.done, summary.snapshot.done) == (1, 1)
    [artifact] = results(tmp_path)["a"]["artifacts"]
    assert (tmp_path / "out" / artifact).read_text() == "a" * 100


def test_many_files_come_in_whole_and_none_is_held_on_to(
    tmp_path: Path, run_on: Any, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write_manifest(tmp_path, *(f"{index:04}" for index in range(1500)))
    work: Coroutine[Any, Any, Any] = run(tmp_path, manifest)
    assert run_on(work).counts.done == 1500
    assert "still referred to" not in caplog.text


def test_many_blobs_of_a_server_come_in_whole_and_none_is_held_on_to(
    tmp_path: Path, run_on: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = {f"{index:03}": bytes([index]) * (index * 1000) for index in range(200)}

    async def served() -> int:
        async with Origin() as origin:
            manifest = origin.put("/list.txt", "".join(f"{name}\n" for name in bodies).encode())
            for name, body in bodies.items():
                origin.put(f"/{name}", body, chunked=body[:1] == b"\x07", ranges=body[:1] != b"\x08")
            return (await run(tmp_path, manifest, processor=f"{module}:process")).counts.done

    module = write_module(
        tmp_path,
        "import hashlib\n"
        "def process(blob, item):\n"
        "    return hashlib.sha256(blob).hexdigest()\n"
        "process.needs_torch = False\n",
    )
    assert run_on(served()) == 200
    found = {name: row["result"] for name, row in results(tmp_path).items()}
    assert found == {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}
    assert "still referred to" not in caplog.text


async def test_digests_that_are_not_verified_are_said_to_be_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "manifest.jsonl").write_text(json.dumps({"id": "a", "url": "a", "sha256": "0" * 64}) + "\n")
    await run(tmp_path, tmp_path / "manifest.jsonl")
    assert "does not verify" in caplog.text
