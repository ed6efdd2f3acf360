"""How the bytes that a run may use are shared out to its lanes: pure, but for reading what the machine allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.errors import UsageError
from app.items import format_binary
from app.processors import Loaded
from app.settings import Settings

DEVICE_SHARE = 0.4  # of a GPU's free memory, for landings


@dataclass(frozen=True, slots=True)
class Plan:
    """What one lane may use, in bytes where nothing else is said."""

    connections: int
    window_bytes: int  # of a slab
    slabs: int  # how many
    landing_bytes: int  # landings on the host
    device_bytes: int | None  # landings on the GPU; None: a share of what is free
    part_bytes: int  # longest part, whole windows
    read_ahead_bytes: int
    streams: bool
    lands_here: bool  # whole items land on the GPU
    host_setting: str  # how --host-buffer came to be, for messages


def plan_lane(settings: Settings, loaded: Loaded, device: str, lanes: int, machine_bytes: int) -> Plan:
    """The plan of each of so many lanes on such a device.

    Raises: UsageError for budgets that contradict each other, with the least that works.
    """
    host_bytes = settings.host_buffer if settings.host_buffer is not None else machine_bytes // 4
    slab, connections = settings.slab_size, settings.connections
    least = 2 * connections * slab * lanes
    if host_bytes < least:
        raise UsageError(
            f"--host-buffer {format_binary(host_bytes)} is under two slabs of {format_binary(slab)} for each of"
            f" {connections} connections{f' of {lanes} lanes' if lanes > 1 else ''}: {format_binary(least)} is the"
            " least that works, or fewer --connections, or a smaller --slab-size"
        )
    share = host_bytes // lanes
    cuda = device.startswith("cuda")
    lands_here = cuda and not loaded.streams and loaded.lands_on == "device"
    if loaded.streams:
        slab_bytes, landing_bytes = share, 0
        part_bytes = min(settings.part_size, share // (2 * connections))
    else:
        slab_bytes = share // 2 if lands_here else 0
        landing_bytes, part_bytes = share - slab_bytes, settings.part_size
    return Plan(
        connections=connections,
        window_bytes=slab,
        slabs=slab_bytes // slab,
        landing_bytes=landing_bytes,
        device_bytes=settings.device_buffer,
        part_bytes=max(part_bytes // slab, 1) * slab,
        read_ahead_bytes=settings.read_ahead // lanes,
        streams=loaded.streams,
        lands_here=lands_here,
        host_setting=f"{format_binary(host_bytes)}{f', shared by {lanes} lanes' if lanes > 1 else ''}",
    )


def machine_bytes(root: Path = Path("/")) -> int:
    """The memory that this machine, or any cgroup this process is in, allows."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    limits = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    for file in _limit_files(root):
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):
            continue  # not there, or "max"
    return min(limits)


def _limit_files(root: Path) -> list[Path]:
    """Where limits may stand: of this process's cgroup and those above it, version 2 and 1 (cgroups(7))."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    files = []
    for line in ["0::/", "0:memory:/", *lines]:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        inside = Path(path.lstrip("/"))
        files += [root / "sys/fs/cgroup" / mount / folder / name for folder in (inside, *inside.parents)]
    return files
