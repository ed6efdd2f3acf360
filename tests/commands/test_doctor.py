from __future__ import annotations

import resource
import ssl
import sys
from pathlib import Path

import pytest
from shell import gpufeed

from app.commands.doctor import (
    Finding,
    check_certificates,
    check_files,
    check_memory,
    check_output,
    check_receiving,
    describe,
    judge_no_gpu,
    judge_version,
)
from app.settings import Settings

GIB = 1 << 30


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return Settings()


def test_on_a_machine_that_will_do_every_line_is_said_and_the_exit_code_is_0(tmp_path: Path) -> None:
    ended = gpufeed(tmp_path, "doctor", APP_DEVICES="cpu")
    assert (ended.returncode, ended.stderr) == (0, "")
    subjects = {line.split()[1] for line in ended.stdout.splitlines()[:-1]}
    assert {"python", "aiohttp", "torch", "loop", "devices", "memory", "open", "receiving", "output"} <= subjects
    assert ended.stdout.splitlines()[-1] == "nothing is wrong"
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_makes_the_exit_code_1_and_is_said_with_how_to_mend_it(tmp_path: Path) -> None:
    ended = gpufeed(tmp_path, "doctor", APP_DEVICES="cuda:77", APP_HOST_BUFFER="1MiB")
    assert ended.returncode == 1
    assert "wrong  devices      unknown device 'cuda:77'" in ended.stdout
    assert "128MiB is the least that works" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "2 wrong"


def test_a_library_that_is_too_old_is_wrong() -> None:
    assert judge_version("aiohttp", "3.14.4", (3, 14, 4)).level == "ok"
    assert judge_version("torch", "2.13.0+cu128", (2, 8)).level == "ok"
    old = judge_version("aiohttp", "3.9.5", (3, 14, 4))
    assert (old.level, old.mend) == ("wrong", "pip install 'aiohttp>=3.14.4'")


def test_a_gpu_that_torch_does_not_see_is_wrong_and_no_gpu_is_not() -> None:
    assert judge_no_gpu(("cpu",), there=False).level == "ok"
    assert judge_no_gpu(("cpu",), there=True).level == "wrong"


def test_the_open_file_limit_is_weighed_against_the_connections() -> None:
    assert check_files(8, 1024, 4096).level == "ok"
    assert check_files(1000, resource.RLIM_INFINITY, resource.RLIM_INFINITY).level == "ok"
    assert check_files(1000, 1024, 4096).mend == "ulimit -n 2064"
    assert check_files(1000, 1024, resource.RLIM_INFINITY).mend == "ulimit -n 2064"
    assert "fewer --connections" in check_files(1000, 1024, 1024).mend


def test_memory_says_the_host_buffer_that_follows_or_the_least_that_works(settings: Settings) -> None:
    enough = check_memory(settings, ("cpu",), 8 * GIB)
    assert (enough.level, enough.said) == ("ok", "8.59 GB for this process; host buffer 2.15 GB")
    little = check_memory(settings, ("cpu:0", "cpu:1"), GIB // 2)
    assert little.level == "wrong"
    assert "256MiB is the least that works" in little.said


def test_a_host_buffer_that_leaves_little_memory_is_warned_of(settings: Settings) -> None:
    assert check_memory(settings.model_copy(update={"host_buffer": 7 * GIB}), ("cpu",), 8 * GIB).level == "warn"


def test_certificates_are_looked_for_where_they_are_said_to_be(tmp_path: Path) -> None:
    assert check_certificates(str(tmp_path / "none.pem")).level == "wrong"
    if ssl.create_default_context().cert_store_stats()["x509_ca"]:
        assert check_certificates(None).level == "ok"


async def test_a_body_is_received_in_place() -> None:
    found = await check_receiving()
    assert (found.level, found.said) == ("ok", "in place, 4.19 MB over the loopback interface")


def test_an_output_folder_below_a_file_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert check_output(tmp_path / "file" / "out").level == "wrong"
    assert check_output(tmp_path / "not" / "yet").level in ("ok", "warn")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_finding_is_a_line_and_its_mending_another() -> None:
    assert describe(Finding("ok", "python", sys.version[:4])).count("\n") == 0
    assert describe(Finding("warn", "loop", "asyncio", "pip install uvloop")).splitlines() == [
        "warn   loop         asyncio",
        "                    mend: pip install uvloop",
    ]
