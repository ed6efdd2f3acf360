"""A real run, killed in the middle of what must be durable; the measuring script of the same kind is bench/kills.py."""

import hashlib
import json

import pytest

from tests.bench.launch import POINTS
from tests.bench.origins import write_blob
from tests.bench.trial import Blob, Trial


@pytest.fixture
def trial(tmp_path):
    blobs = {}
    for number in range(8):
        path = tmp_path / f"{number}.bin"
        write_blob(path, number, 300_000 + number)
        blobs[f"item {number}"] = Blob(path, hashlib.sha256(path.read_bytes()).hexdigest())
    lines = [json.dumps({"id": item_id, "url": blob.path.name}) for item_id, blob in blobs.items()]
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("\n".join(lines))
    small = {"slab_size": "64KiB", "part_size": "64KiB"}  # else all items are one call of the device, and one commit
    return Trial(manifest, tmp_path / "out", blobs, timeout_s=30, **small)


@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_a_named_point_and_started_again_ends_with_one_right_outcome_for_each_item(trial, point):
    trial.kill_at(point)
    trial.finish()
    trial.check()
    assert trial.faults == []


def test_a_run_killed_at_one_point_after_the_other_ends_with_all_right_too(trial):
    for point in POINTS:
        trial.kill_at(point)
    trial.finish()
    trial.check()
    assert trial.faults == []
