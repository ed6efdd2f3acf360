"""The bytes that a run may use, shared out to its lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lanes.scripted import loaded

from app.errors import UsageError
from app.items import parse_size
from app.lanes.budgets import Plan, machine_bytes, plan_lane
from app.settings import Settings

MIB, GIB = 1 << 20, 1 << 30


def of(device: str = "cpu", lanes: int = 1, machine: int = 64 * GIB, *, streams: bool = False, **flags: Any) -> Plan:
    lands_on = flags.pop("lands_on", "device")
    processor = loaded(print, streams=streams, lands_on=lands_on)
    return plan_lane(Settings(_env_file=None, **flags), processor, device, lanes, machine)


def test_a_quarter_of_the_machine_is_used_where_nothing_is_said() -> None:
    assert of(machine=8 * GIB).landing_bytes == 2 * GIB


def test_whole_items_on_the_cpu_need_no_slabs() -> None:
    plan = of(host_buffer="1GiB")
    assert (plan.slabs, plan.landing_bytes, plan.lands_here) == (0, GIB, False)


def test_whole_items_on_a_gpu_need_slabs_and_leave_half_for_items_of_unknown_length() -> None:
    plan = of("cuda:0", host_buffer="1GiB")
    assert (plan.slabs, plan.landing_bytes, plan.lands_here) == (64, 512 * MIB, True)
    assert of("cuda:0", device_buffer="3GiB").device_bytes == 3 * GIB


def test_a_processor_that_lands_on_the_host_has_its_landings_there_on_a_gpu_as_well() -> None:
    plan = of("cuda:0", host_buffer="1GiB", lands_on="host")
    assert (plan.slabs, plan.landing_bytes, plan.lands_here) == (0, GIB, False)


def test_streams_have_slabs_only_and_parts_that_all_connections_fit_in() -> None:
    plan = of(streams=True, host_buffer="256MiB", connections=8)
    assert (plan.slabs, plan.landing_bytes, plan.part_bytes) == (32, 0, 16 * MIB)
    assert of(streams=True, host_buffer="8GiB").part_bytes == 64 * MIB


def test_lanes_share_equally() -> None:
    assert of("cpu:0", 4, host_buffer="2GiB").landing_bytes == 512 * MIB
    assert of("cpu:0", 4, host_buffer="2GiB").host_setting == "2GiB, shared by 4 lanes"


@pytest.mark.parametrize(("lanes", "least"), [(1, "128MiB"), (2, "256MiB")])
def test_a_host_buffer_under_two_slabs_a_connection_is_refused_with_the_least_that_works(
    lanes: int, least: str
) -> None:
    with pytest.raises(UsageError, match=rf"--host-buffer 100MiB .*: {least} is the least that works"):
        of(lanes=lanes, host_buffer="100MiB")
    of(lanes=lanes, host_buffer=least)


@given(
    st.integers(1, 64),
    st.integers(16, 24),
    st.integers(1, 1 << 40),
    st.integers(1 << 16, 1 << 32),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from(["cpu", "cuda:0"]),
)
def test_for_any_settings_the_lanes_together_stay_within_the_host_buffer(
    connections: int, power: int, host: int, part: int, lanes: int, streams: bool, device: str
) -> None:
    slab = 1 << power
    assume(part >= slab)
    flags = {"connections": connections, "slab_size": slab, "host_buffer": host, "part_size": part}
    try:
        plan = of(device, lanes, streams=streams, **flags)
    except UsageError as error:
        assert host < 2 * connections * slab * lanes
        least = str(error).partition(": ")[2].partition(" is the least")[0]
        of(device, lanes, streams=streams, **(flags | {"host_buffer": parse_size(least)}))
        return
    assert lanes * (plan.slabs * slab + plan.landing_bytes) <= host
    assert plan.part_bytes % slab == 0
    assert 0 < plan.part_bytes <= part
    if streams:
        assert plan.slabs >= 2 * connections
        assert plan.part_bytes * 2 * connections <= plan.slabs * slab or plan.part_bytes == slab


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 16 * GIB),
        ({"sys/fs/cgroup/memory.max": "max\n"}, 16 * GIB),
        ({"sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}, 4 * GIB),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n"}, 2 * GIB),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 16 * GIB),
        ({"sys/fs/cgroup/memory.max": ""}, 16 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{3 * GIB}"}, 3 * GIB),
        ({"proc/self/cgroup": "4:cpu:/a\n5:memory:/a/b\n", "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "77"}, 77),
        ({"proc/self/cgroup": "4:cpu:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "77"}, 16 * GIB),
    ],
)
def test_memory_is_what_the_machine_or_its_cgroup_allows(limits: dict[str, str], expected: int, tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", f"MemTotal:       {16 * MIB} kB\nMemFree:         {8 * MIB} kB\n")
    for name, text in limits.items():
        write(tmp_path, name, text)
    assert machine_bytes(tmp_path) == expected
