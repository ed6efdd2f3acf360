import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from ledgers import opened

from app.errors import UsageError
from app.folder import is_network_path, is_remote, lock, move_aside

NOW = datetime(2026, 12, 1, 14, 3, 5, tzinfo=timezone(timedelta(hours=2)))
MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /mnt/team rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /mnt/team/scratch rw - xfs /dev/sdb rw
32 22 0:41 / /mnt/with\040space rw - cifs //server/share rw
33 22 0:42 / /home/me/remote rw - fuse.sshfs me@server: rw
34 22 8:3 / /data rw - ext4 /dev/sdc rw
35 22 0:43 / /data rw master:3 propagate_from:2 - lustre server:/data rw
36 22 0:44 / /win rw - smb3 //server/win rw
37 22 0:45 / /local rw - fuse.mergerfs a:b rw
"""


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("/", False),
        ("/mnt", False),
        ("/mnt/team", True),
        ("/mnt/team/out", True),
        ("/mnt/teamwork/out", False),
        ("/mnt/team/scratch/out", False),
        ("/mnt/with space/out", True),
        ("/home/me/remote/out", True),
        ("/home/me/out", False),
        ("/data/out", True),
        ("/win", True),
        ("/local/out", False),
    ],
)
def test_a_network_path_is_known_by_the_mount_that_it_lies_on(path, remote):
    assert is_network_path(path, MOUNTS) is remote


def test_without_a_mount_table_a_path_is_local():
    assert not is_network_path("/out", "")


def test_this_machines_own_mount_table_is_understood():
    assert not is_remote(Path("/proc"))


def test_an_output_folder_is_moved_aside_with_all_that_is_in_it(tmp_path):
    out = tmp_path / "out"
    (out / "artifacts").mkdir(parents=True)
    (out / "ledger.sqlite").touch()
    aside = move_aside(out, NOW)
    assert aside == tmp_path / "out.20261201T120305Z"
    assert (aside / "artifacts").is_dir()
    assert not out.exists()


def test_what_was_moved_aside_before_is_never_overwritten(tmp_path):
    names = []
    for _ in range(3):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "ledger.sqlite").touch()
        names.append(move_aside(tmp_path / "out", NOW.astimezone(UTC)).name)
    assert names == ["out.20261201T120305Z", "out.20261201T120305Z.2", "out.20261201T120305Z.3"]
    assert all((tmp_path / name / "ledger.sqlite").exists() for name in names)


def test_where_there_is_nothing_nothing_is_moved(tmp_path):
    assert move_aside(tmp_path / "out", NOW) is None
    (tmp_path / "out").mkdir()
    assert move_aside(tmp_path / "out", NOW) is None


def test_a_link_stays_and_the_folder_it_names_is_moved(tmp_path):
    (tmp_path / "disk" / "out").mkdir(parents=True)
    (tmp_path / "disk" / "out" / "ledger.sqlite").touch()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "out")
    assert move_aside(tmp_path / "out", NOW) == tmp_path / "disk" / "out.20261201T120305Z"
    assert (tmp_path / "out").is_symlink()


async def test_a_run_after_the_move_starts_anew_behind_the_same_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "out")
    async with await opened(tmp_path / "out"):
        assert (tmp_path / "disk" / "out" / "ledger.sqlite").is_file()


async def test_a_folder_with_a_run_alive_is_not_moved(tmp_path):
    out = tmp_path / "out"
    async with await opened(out):
        with pytest.raises(UsageError, match=f"is in use by process {os.getpid()}"):
            move_aside(out, NOW)
    assert move_aside(out, NOW) is not None
    async with await opened(out):
        pass


def test_a_file_is_no_folder_to_move(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        move_aside(tmp_path / "out", NOW)


def test_what_cannot_be_moved_is_a_usage_error(tmp_path):
    (tmp_path / "out" / "ledger.lock").mkdir(parents=True)
    (tmp_path / "out" / "ledger.sqlite").touch()
    with pytest.raises(UsageError, match="cannot be moved aside"):
        move_aside(tmp_path / "out", NOW)


def test_a_folder_that_is_no_output_folder_is_left_where_it_is(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "precious.py").touch()
    with pytest.raises(UsageError, match="no output folder"):
        move_aside(tmp_path / "src", NOW)
    assert (tmp_path / "src" / "precious.py").exists()


def test_the_working_directory_is_not_moved_from_under_the_user(tmp_path, monkeypatch):
    (tmp_path / "ledger.sqlite").touch()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(UsageError, match="working directory"):
        move_aside(tmp_path, NOW)


def test_a_lock_is_free_again_when_its_descriptor_is_closed(tmp_path):
    held = lock(tmp_path)
    with pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
        lock(tmp_path)
    os.close(held)
    os.close(lock(tmp_path))
