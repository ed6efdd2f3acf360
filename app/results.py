"""What a processor returns, made durable: arrays and bytes as artifacts, written by rename; the rest as JSON."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

from app.errors import ItemError, Kind, RunError
from app.folder import sync_folder

ARTIFACTS, RESULTS = "artifacts", "results.jsonl"
_MAX_DEPTH = 100
_MAX_INTEGER = 10**4000  # Python reads integers of up to 4300 digits back
_MAX_JSON_BYTES = 64 << 20
# The name in files → the name that the safetensors package takes, and bytes per element.
_DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
}

ARRAY_DTYPES = {plain: name for name, (plain, _) in _DTYPES.items()}  # as torch and numpy name them → as files do


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor's values in host memory, row-major and little-endian; a writable buffer is saved without a copy."""

    dtype: str  # as safetensors names it in files: F32, BF16, U8, …
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"no dtype {self.dtype}; there are {', '.join(_DTYPES)}")
        view = memoryview(self.data)
        if not view.c_contiguous or view.nbytes != math.prod(self.shape) * _DTYPES[self.dtype][1]:
            raise ValueError(f"{view.nbytes} bytes are no {self.dtype} array of shape {self.shape}")


def weight(result: Any) -> int:
    """The bytes of the arrays and bytes in a result: what it takes of memory until it is stored."""
    if isinstance(result, Array):
        return memoryview(result.data).nbytes
    if isinstance(result, bytes):
        return len(result)
    if isinstance(result, dict):
        return sum(map(weight, result.values()))
    return sum(map(weight, result)) if isinstance(result, list | tuple) else 0


@dataclass(frozen=True, slots=True)
class Stored:
    """A result as the ledger takes it; its artifacts are on disk."""

    result: Any  # what JSON can hold
    artifacts: tuple[str, ...]  # relative to the output folder


def store(folder: Path, item_id: str, result: Any) -> Stored:
    """Write the arrays and bytes in a result as artifacts, durably; in their place stands where they are.

    Raises: ItemError for what results cannot hold, RunError where the disk is full or cannot be written to.
    """
    tree = _Tree(file_name(item_id))
    plain = tree.plain(result, ())
    if len(json.dumps(plain)) > _MAX_JSON_BYTES:
        raise _unfit((), "is longer than 64 MiB as JSON; tensors and bytes in it would become files")
    try:
        return Stored(plain, tree.write(folder))
    except OSError as error:
        raise RunError(f"artifacts in {folder} cannot be written: {error}") from error


def sweep(folder: Path) -> None:
    """Remove what a killed run left half written; only while the ledger is held, and before anything is stored.

    Raises: RunError where the folder cannot be written to.
    """
    try:
        ours = [*folder.glob(f"{ARTIFACTS}/.*.tmp"), *folder.glob(f".{RESULTS}.*.tmp")]
        for stale in [*ours, *folder.glob(f"{ARTIFACTS}/.tmp*")]:  # these the safetensors package makes
            if stale.is_file():
                stale.unlink()
    except OSError as error:
        raise RunError(f"{folder} cannot be swept: {error}") from error


def file_name(text: str) -> str:
    """A file name for any text: at most 93 safe characters, no leading dot, another one for any other text."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", text)[-80:]  # of a URL the end tells more
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub('^[.]', '_', safe)}.{digest[:12]}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside this one, whose file takes its place when the block ends; its bytes are durable then.

    The name is durable when the folder is synced. Where the block raises, the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors makes its files for the owner alone
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class _Tree:
    """A result on its way to JSON; what JSON cannot hold is taken out, and its place names the artifact."""

    def __init__(self, name: str) -> None:
        self._stem = f"{ARTIFACTS}/{name}"
        self._arrays: dict[str, Array] = {}  # by key in the one safetensors file
        self._files: dict[str, bytes] = {}  # by path relative to the output folder

    def plain(self, value: Any, path: tuple[str, ...]) -> Any:
        if len(path) > _MAX_DEPTH:
            raise _unfit(path[:3], f"is nested deeper than {_MAX_DEPTH} levels, or contains itself")
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            if abs(value) > _MAX_INTEGER:
                raise _unfit(path, "is an integer of more than 4000 digits, which results cannot hold")
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else json.dumps(value)  # "NaN", "Infinity", "-Infinity"
        if isinstance(value, list | tuple):
            return [self.plain(element, (*path, str(index))) for index, element in enumerate(value)]
        if isinstance(value, dict):
            return self._object(value, path)
        if isinstance(value, Array):
            key = _unused(".".join(path) or "tensor", self._arrays)
            self._arrays[key] = value
            return {"artifact": f"{self._stem}.safetensors", "key": key}
        if isinstance(value, bytes | bytearray | memoryview):
            dotted = ".".join(path)
            short = dotted if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{,79}", dotted) else file_name(dotted)
            name = _unused(f"{self._stem}.{short}.bin" if path else f"{self._stem}.bin", self._files)
            self._files[name] = bytes(value)
            return {"artifact": name}
        raise _unfit(path, f"is a {type(value).__name__}, which results cannot hold")

    def _object(self, value: dict[Any, Any], path: tuple[str, ...]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, element in value.items():
            if key is not None and not isinstance(key, str | int | float):
                raise _unfit(path, f"has a key that is a {type(key).__name__}, which results cannot hold")
            name = key if isinstance(key, str) else json.dumps(self.plain(key, path)).strip('"')
            if name in plain:
                raise _unfit(path, f"has two keys that are {name!r} in JSON")
            plain[name] = self.plain(element, (*path, name.encode("utf-8", "backslashreplace").decode()))
        return plain

    def write(self, folder: Path) -> tuple[str, ...]:
        names = list(self._files)
        if self._arrays:
            names.append(f"{self._stem}.safetensors")
        if not names:
            return ()
        artifacts = folder / ARTIFACTS
        if not artifacts.is_dir():
            artifacts.mkdir(exist_ok=True)
            sync_folder(folder)
        for name in names:
            with replacing(folder / name) as temporary:
                if name in self._files:
                    temporary.write_bytes(self._files[name])
                else:
                    _write_arrays(temporary, self._arrays)
        sync_folder(artifacts)
        return tuple(names)


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    memory = {key: _memory(array) for key, array in arrays.items()}  # alive until the file is written
    specs = {
        key: safetensors.TensorSpec(
            dtype=_DTYPES[array.dtype][0],
            shape=array.shape,
            data_ptr=ctypes.addressof(memory[key]),
            data_len=len(memory[key]),
        )
        for key, array in arrays.items()
    }
    try:
        safetensors.serialize_file(specs, path)
    except safetensors.SafetensorError as error:
        if "I/O error" in str(error):  # its only trace of an OSError (safetensors 0.8)
            raise OSError(str(error)) from error
        raise ItemError(Kind.PROCESSOR, f"the arrays of the result cannot be saved: {error}") from error


def _memory(array: Array) -> ctypes.Array[ctypes.c_char]:
    view = memoryview(array.data)
    kind = ctypes.c_char * view.nbytes
    if not view.nbytes:
        return kind()
    return kind.from_buffer_copy(view) if view.readonly else kind.from_buffer(view)


def _unused(name: str, taken: Container[str]) -> str:
    """Dotted paths are not unique, and one name means something else in a safetensors file."""
    free, number = name, 1
    while free in taken or free == "__metadata__":
        number += 1
        free = f"{name}.{number}"
    return free


def _unfit(path: tuple[str, ...], what: str) -> ItemError:
    return ItemError(Kind.PROCESSOR, f"what the processor returned, at {'.'.join(('result', *path))}, {what}")
