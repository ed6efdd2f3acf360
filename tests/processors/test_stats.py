"""`stats` against straightforward computations in exact fractions."""

from __future__ import annotations

import ctypes
import json
import math
import os
import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ItemError, Kind, UsageError
from app.items import Item
from app.processors import DeviceInfo
from app.processors.stats import FLOATS, INTEGERS, Stats

ITEM = Item("x", "file:///x")
ROOT = Path(__file__).parents[2]
CPU = DeviceInfo("cpu", None)
WIDE = ("int32", "int64", "float32", "float64")


def itemsize(dtype: str) -> int:
    return getattr(torch, dtype).itemsize


def octets(typed: torch.Tensor) -> bytes:
    return ctypes.string_at(typed.data_ptr(), typed.nbytes)


def run(data: bytes, cuts: list[int], dtype: str) -> dict[str, Any]:
    stats = Stats(dtype=dtype)
    with torch.inference_mode():
        stats.open(CPU)
        return stream(stats, data, cuts)


def stream(stats: Stats, data: bytes, cuts: list[int]) -> dict[str, Any]:
    stats.begin(ITEM)
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        window = buffer[start:stop].clone() if start % 2 else buffer[start:stop]  # aligned and not
        stats.update(window, start)
        if start % 2:
            window.fill_(0xAA)  # it is valid only until update returns
    return stats.finish(ITEM)


def elements(data: bytes, dtype: str) -> list[float]:
    if not data:
        return []
    typed = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
    return typed.to(torch.float64).tolist() if dtype in FLOATS else typed.tolist()


def bins_for(finite: list[float], dtype: str) -> tuple[Fraction, Fraction]:
    """The first edge and the width, found as the documentation says."""
    low, high = Fraction(min(finite)), Fraction(max(finite))
    if itemsize(dtype) == 1:
        return Fraction(torch.iinfo(getattr(torch, dtype)).min), Fraction(1)

    def is_wide_enough(exponent: int) -> bool:
        first, last = (math.floor(value / Fraction(2) ** exponent) for value in (low, high))
        return last - first < 256 and (dtype in INTEGERS or max(abs(first), abs(last)) < 2**52)

    exponents = range(-1022 if dtype in FLOATS else 0, 1018)
    width = Fraction(2) ** exponents[bisect_left(exponents, True, key=is_wide_enough)]
    return math.floor(low / width) * width, width


def reference(data: bytes, dtype: str) -> dict[str, Any]:
    values = elements(data, dtype)
    finite = [value for value in values if math.isfinite(value)]
    expected: dict[str, Any] = {"dtype": dtype, "count": len(values)}
    if dtype in FLOATS:
        expected["nan"] = sum(math.isnan(value) for value in values)
        expected["inf"] = sum(math.isinf(value) for value in values)
    if not finite:
        expected |= dict.fromkeys(("min", "max", "mean", "std", "histogram", "edges"))
        return expected | ({"entropy": None} if dtype == "uint8" else {})
    exact = [Fraction(value) for value in finite]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    first, width = bins_for(finite, dtype)
    places = Counter(math.floor((value - first) / width) for value in exact)
    expected |= {"min": min(finite), "max": max(finite), "mean": float(mean), "std": root(variance)}
    expected |= {"histogram": [places[place] for place in range(256)], "edges": [first, first + 256 * width]}
    if dtype == "uint8":
        shares = [number / len(values) for number in Counter(values).values()]
        expected["entropy"] = -math.fsum(share * math.log2(share) for share in shares)
    return expected


def root(variance: Fraction) -> float:
    """The square root, where the square itself may be beyond float64."""
    scale = max(0, variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(variance / 4**scale), scale)


def agree(result: dict[str, Any], expected: dict[str, Any], dtype: str) -> None:
    result, expected = dict(result), dict(expected)
    spread = None if expected["min"] is None else abs(expected["max"]) + abs(expected["min"])
    for name in ("mean", "std", "entropy"):
        if name not in expected:
            continue
        got, want = result.pop(name), expected.pop(name)
        if want is None:
            assert got is None
        elif got is None:  # only where the squares, or the sums, are beyond float64
            assert dtype == "float64"
            assert spread is not None
            assert spread > 1e150
        else:
            tolerance = 1e-12 if name == "entropy" else 1e-11 * (expected["max"] - expected["min"])
            tolerance = max(tolerance, 1e-15 * abs(want), 1e-160)
            assert abs(Fraction(got) - Fraction(want)) <= tolerance, name
    if (edges := expected["edges"]) is not None:
        largest = Fraction(sys.float_info.max)
        expected["edges"] = [None if abs(edge) > largest and dtype in FLOATS else float(edge) for edge in edges]
        if dtype in INTEGERS:
            expected["edges"] = [int(edge) for edge in edges]
    assert result == expected


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_for_any_bytes_and_any_cutting_the_result_is_the_straightforward_one(dtype: str, data: st.DataObject) -> None:
    size = itemsize(dtype)
    numbers = [b"\0" * size, b"\xff" * size, b"\x7f" * size, b"\x80" + b"\0" * (size - 1), b"\0" * (size - 1) + b"\x80"]
    element = st.binary(min_size=size, max_size=size) | st.sampled_from(numbers)
    content = b"".join(data.draw(st.lists(element, max_size=60)))
    cuts = data.draw(st.lists(st.integers(0, 1 << 20), max_size=8))
    agree(run(content, cuts, dtype), reference(content, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_for_any_floats_of_like_size_the_result_is_the_straightforward_one(dtype: str, data: st.DataObject) -> None:
    center = data.draw(st.sampled_from([0.0, 1.0, -3.0, 1000.0]))
    near = st.floats(center - 2, center + 2) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
    values = data.draw(st.lists(near, max_size=60))
    typed = torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype))
    content = octets(typed)
    cuts = data.draw(st.lists(st.integers(0, 1 << 20), max_size=8))
    agree(run(content, cuts, dtype), reference(content, dtype), dtype)


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_many_tiles_give_what_one_computation_on_the_whole_gives(dtype: str) -> None:
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(7)
    count = 600_000 if dtype in WIDE else 2_500_000  # some tiles, the last one short
    drawn = torch.randn(count, generator=generator, dtype=torch.float64) * 20 + 60
    typed = drawn.clamp(0, 127).to(torch.uint8).to(kind) if dtype in INTEGERS else drawn.to(kind)
    result = run(octets(typed), [8 << 16, (8 << 17) + 3], dtype)
    whole = typed.to(torch.float64)
    assert (result["count"], result["min"], result["max"]) == (count, float(whole.min()), float(whole.max()))
    assert result["mean"] == pytest.approx(float(whole.mean()), rel=1e-12)
    assert result["std"] == pytest.approx(float(whole.std(correction=0)), rel=1e-12)
    low, high = result["edges"]
    places = ((whole - low) * (256 / (high - low))).floor().long()
    assert result["histogram"] == torch.bincount(places, minlength=256).tolist()


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_an_empty_item_counts_nothing_and_the_rest_is_null(dtype: str) -> None:
    result = run(b"", [], dtype)
    assert result == reference(b"", dtype)
    assert result["count"] == 0
    assert result["mean"] is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_where_all_is_nan_or_infinite_the_rest_is_null_and_json_holds_it(dtype: str) -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, math.nan, math.nan]).to(getattr(torch, dtype))
    result = run(octets(values), [3], dtype)
    assert (result["count"], result["nan"], result["inf"]) == (5, 3, 2)
    assert result["min"] is result["max"] is result["mean"] is result["histogram"] is None
    json.dumps(result, allow_nan=False)


def test_finite_values_after_a_tile_of_nan_are_counted_right() -> None:
    values = torch.tensor([math.nan] * 7 + [5.0, 6.0, math.inf, 5.5])
    result = run(octets(values), [12, 28], "float32")
    assert (result["count"], result["nan"], result["inf"]) == (11, 7, 1)
    assert (result["min"], result["max"], result["mean"]) == (5.0, 6.0, 5.5)
    assert sum(result["histogram"]) == 3


@pytest.mark.parametrize(("dtype", "length"), [("float32", 7), ("int64", 1), ("uint16", 3), ("float64", 17)])
def test_a_trailing_part_of_an_element_fails_the_item_as_decode(dtype: str, length: int) -> None:
    with pytest.raises(ItemError, match=f"{length} bytes are no whole number of {dtype}") as raised:
        run(bytes(length), [2], dtype)
    assert raised.value.kind is Kind.DECODE


def test_after_a_failed_or_abandoned_item_the_next_starts_afresh() -> None:
    stats = Stats("int32")
    with torch.inference_mode():
        stats.open(CPU)
        with pytest.raises(ItemError):
            stream(stats, b"\1" * 7, [])
        stats.begin(ITEM)
        stats.update(torch.full((5,), 9, dtype=torch.uint8), 0)
        result = stream(stats, b"\2\0\0\0\4\0\0\0", [1])
    assert (result["count"], result["min"], result["max"], result["mean"], result["std"]) == (2, 2, 4, 3.0, 1.0)


def test_a_small_spread_far_from_zero_keeps_its_standard_deviation() -> None:
    base = 1 << 62
    values = [base + offset for offset in (1, 3, 5, 7)] * 100
    result = run(octets(torch.tensor(values)), [400, 1600], "int64")
    assert result["std"] == pytest.approx(math.sqrt(5), rel=1e-12)
    assert (result["min"], result["max"]) == (base + 1, base + 7)
    shifted = torch.tensor([1e15 + offset for offset in (1, 3, 5, 7)] * 100, dtype=torch.float64)
    result = run(octets(shifted), [400, 1600], "float64")
    assert result["std"] == pytest.approx(math.sqrt(5), rel=1e-12)


def test_bytes_have_one_bin_a_value_and_an_entropy() -> None:
    result = run(bytes(range(256)) * 3, [100], "uint8")
    assert result["histogram"] == [3] * 256
    assert result["edges"] == [0, 256]
    assert result["entropy"] == 8.0
    assert run(bytes(50), [], "uint8")["entropy"] == 0.0


def test_an_unknown_dtype_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="stats knows no dtype 'complex64'; it knows uint8, int8"):
        Stats("complex64")


MEASURE = """
import json, math, sys
import torch
from app.items import Item
from app.processors import DeviceInfo
from app.processors.stats import FLOATS, INTEGERS, Stats
from app.processors.tallies import NARROW_TILE, WIDE_TILE, grid_for, tally_for

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

def extra(work):
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = memory("VmRSS:")
    work()
    return memory("VmHWM:") - before

def gpu_tile(name):
    dtype = getattr(torch, name)
    tile = torch.ones((NARROW_TILE if dtype.itemsize <= 2 else WIDE_TILE)["cuda"], dtype=dtype)
    if dtype.is_floating_point:
        tile[0] = math.nan  # takes the way without looking, as on a GPU
    tally = tally_for(dtype, torch.device("cpu"), grid_for(dtype, torch.device("cpu")))
    return lambda: tally.add(tile)

def whole_window(name):
    stats = Stats(name)
    stats.open(DeviceInfo("cpu", None))
    stats.begin(Item("x", None))
    window = torch.ones((256 << 20) + 1, dtype=torch.uint8)
    return lambda: (stats.update(window[:3], 0), stats.update(window[3:-1], 3))

torch.set_num_threads(1)
with torch.inference_mode():
    gpu_tile("float64")()
    print(json.dumps({name: extra(gpu_tile(name)) for name in INTEGERS + FLOATS}))
    print(json.dumps({name: extra(whole_window(name)) for name in ("uint8", "uint16", "int64", "float64")}))
"""


def test_extra_memory_stays_under_64_mib_whatever_the_window() -> None:
    # All memory goes back at once, so that none of it is used again unseen.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    of_gpu_tiles, of_a_whole_window = map(json.loads, done.stdout.splitlines())
    assert max(of_gpu_tiles.values()) < 64 << 20, of_gpu_tiles
    assert min(of_gpu_tiles[name] for name in WIDE) > 16 << 20, "the measurement sees nothing"
    assert max(of_a_whole_window.values()) < 64 << 20, of_a_whole_window
