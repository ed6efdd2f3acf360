"""The device contract on the CPU, and the tables of what errors mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lanes.device_contract import DeviceContract, value
from lanes.torch_contract import TorchContract

from app.errors import UsageError
from app.items import Item
from app.lanes.faults import POISON, out_of_memory, poisons
from app.lanes.gpus import find_devices
from app.lanes.plain import copy_out
from app.results import Array


class TestWithTorchOnTheCpu(TorchContract):
    device_name = "cpu:0"


class TestWithoutTorch(DeviceContract):
    device_name = "cpu"
    needs_torch = False

    async def test_a_blob_is_a_memoryview(self) -> None:
        def look(blob: Any, _: Item) -> list[Any]:
            return [isinstance(blob, memoryview), blob.format, blob.nbytes]

        assert value(await self.result(look)) == [True, "B", 4]


def coded(code: int) -> Exception:
    error = RuntimeError("CUDA error")
    error.error_code = code  # type: ignore[attr-defined]  # as torch.AcceleratorError has it
    return error


def test_the_errors_of_the_shutdown_contract_poison_the_context() -> None:
    listed = {226, 700, 702, 710, 721, 810, 911, 214, 220, *range(714, 720)}
    assert listed == POISON
    assert {code for code in range(1, 1000) if poisons(coded(code))} == listed


@pytest.mark.parametrize(
    ("text", "poisoned"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("CUDA error: invalid configuration argument", False),
        ("the model saw an illegal memory access once", False),
        ("shapes (3,) and (4,) do not match", False),
    ],
)
def test_without_a_code_the_text_tells_whether_the_context_is_poisoned(text: str, poisoned: bool) -> None:
    assert poisons(RuntimeError(text)) is poisoned


class OutOfMemoryError(RuntimeError):  # as torch names its own
    pass


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 36 bytes."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (ValueError("out of memory"), False),
        (RuntimeError("size mismatch"), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error: Exception, is_it: bool) -> None:
    assert out_of_memory(error) is is_it


def test_numpy_arrays_are_kept_little_endian_and_row_major() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert copy_out(array) == Array("I32", (3, 2), np.ascontiguousarray(array).astype("<i4").tobytes())
    assert copy_out({"a": [np.float32(1.5), np.bool_(True), np.array(7)]}) == {"a": [1.5, True, 7]}
    with pytest.raises(TypeError, match="complex128"):
        copy_out(np.zeros(2, dtype=complex))


def test_buffers_become_bytes_and_tuples_lists() -> None:
    buffer = bytearray(b"abc")
    kept = copy_out((buffer, memoryview(buffer)[1:], b"d", None, 1.5, {"k": ()}))
    buffer[:] = b"xyz"
    assert kept == [b"abc", b"bc", b"d", None, 1.5, {"k": []}]


def test_a_result_that_holds_itself_is_refused() -> None:
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    with pytest.raises(ValueError, match="holds itself"):
        copy_out(cycle)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("auto", ("cpu",)), ("cpu", ("cpu",)), ("cpu:0, cpu:1", ("cpu:0", "cpu:1")), ("cpu:7", ("cpu:7",))],
)
def test_devices_of_a_machine_without_a_gpu(spec: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    assert find_devices(spec, tmp_path) == expected


@pytest.mark.parametrize("spec", ["gpu", "cuda:99", "cpu:0,", "", "cpu:x", "mps"])
def test_an_unknown_device_is_refused_with_those_that_exist(spec: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown device .*there are: cpu, cpu:0, cpu:1"):
        find_devices(spec, tmp_path)


def test_a_device_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="twice"):
        find_devices("cpu:0,cpu:0", tmp_path)
