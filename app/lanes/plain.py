"""Results without tensors: what leaves the device thread."""

from __future__ import annotations

import ctypes
from typing import Any

from app.results import ARRAY_DTYPES, Array


def copy_out(value: Any, depth: int = 0) -> Any:
    """A result with its tensors and arrays as plain `Array`s in host memory, and those of one element as numbers."""
    if depth > 100:
        raise ValueError("the result is nested more than 100 deep, or holds itself")
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    if isinstance(value, dict):
        return {key: copy_out(held, depth + 1) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [copy_out(held, depth + 1) for held in value]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage"):
        return _array_of_tensor(value)
    if hasattr(value, "__array_interface__"):
        return _array_of_array(value)
    return value


def _array_of_tensor(tensor: Any) -> Any:
    if tensor.ndim == 0 and not tensor.is_complex():
        return tensor.item()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ARRAY_DTYPES:
        raise TypeError(f"a tensor of {tensor.dtype} cannot be kept in a result")
    host = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()  # its shape and dtype, cpu
    data = ctypes.string_at(host.data_ptr(), host.nbytes) if host.nbytes else b""
    return Array(ARRAY_DTYPES[dtype], tuple(host.shape), data)


def _array_of_array(array: Any) -> Any:
    if array.shape == ():
        return array.item()
    if array.dtype.name not in ARRAY_DTYPES:
        raise TypeError(f"an array of {array.dtype} cannot be kept in a result")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Array(ARRAY_DTYPES[array.dtype.name], tuple(array.shape), little.tobytes())
