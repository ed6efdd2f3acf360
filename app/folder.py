"""The output folder of a run: held by one process, moved aside, durable, on this machine or on a network."""

from __future__ import annotations

import fcntl
import os
import re
from datetime import UTC, datetime
from pathlib import Path

from app.errors import UsageError

LOCK, LEDGER = "ledger.lock", "ledger.sqlite"
_NETWORK = re.compile(r"nfs4?|cifs|smb.*|9p|lustre|gpfs|beegfs|ceph|fuse\.(sshfs|ceph|glusterfs|s3fs|gcsfuse|rclone)")


def lock(folder: Path) -> int:
    """Hold the folder for this process until the returned descriptor is closed.

    Raises: UsageError where another holds it, OSError where it cannot be written to.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder / LOCK)):  # moved aside in between
            raise UsageError(f"{folder} is being moved aside by another process")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d" % os.getpid(), 0)
    except BaseException as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace") or "unknown"
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise UsageError(f"{folder} is in use by process {holder}") from None
        raise
    return descriptor


def move_aside(folder: Path, now: datetime) -> Path | None:
    """Rename an output folder to `<name>.<UTC time>` and return its new path; None where there is nothing to move.

    Raises: UsageError where a run is alive in it, or where it cannot be moved.
    """
    folder = folder.resolve()  # a link to another disk stays where it is, and so does the next run
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder")
        if not (folder / LEDGER).is_file():
            raise UsageError(f"{folder} has no {LEDGER}: it is no output folder, and --fresh leaves it where it is")
        if Path.cwd().is_relative_to(folder):
            raise UsageError(f"{folder} holds the working directory, which --fresh would move; run it elsewhere")
        held = lock(folder)
        try:
            stem = f"{folder.name}.{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
            aside, number = folder.with_name(stem), 1
            while os.path.lexists(aside):
                number += 1
                aside = folder.with_name(f"{stem}.{number}")
            folder.rename(aside)
            sync_folder(aside.parent)
        finally:
            os.close(held)
    except OSError as error:
        raise UsageError(f"{folder} cannot be moved aside: {error.strerror}; give another --output") from error
    return aside


def sync_folder(folder: Path) -> None:
    """Make the names in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_remote(folder: Path) -> bool:
    """Whether the folder lies on a network file system; False where the system does not tell."""
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return False
    return is_network_path(os.path.realpath(folder), mountinfo)


def is_network_path(path: str, mountinfo: str) -> bool:
    """Whether an absolute path lies on a network file system, by the text of /proc/self/mountinfo (proc(5))."""
    longest, kind = -1, ""
    for line in mountinfo.splitlines():
        mount, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mount.split(" ")[4])
        if (path + "/").startswith(point.rstrip("/") + "/") and len(
            point
        ) >= longest:  # the last of equals hides others
            longest, kind = len(point), rest.split(" ")[0]
    return _NETWORK.fullmatch(kind) is not None
