"""Pure: what an error on the device thread means."""

from __future__ import annotations

import re
import traceback

from app.errors import ItemError, Kind
from app.items import Failure

# CUDA errors after which nothing works in this process any more (driver API numbers; CUDA Toolkit, "Error Handling").
POISON = frozenset({214, 220, 226, 700, 702, 710, *range(714, 720), 721, 810, 911})
_POISON_TEXT = re.compile(
    r"illegal memory access|device-side assert|launch timed out|hardware stack error|illegal instruction"
    r"|misaligned address|invalid address space|invalid program counter|unspecified launch failure"
    r"|uncorrectable (ECC|NVLink) error",
    re.IGNORECASE,
)
_OUT_OF_MEMORY_TEXT = re.compile(
    r"out of memory|can't allocate memory|not enough memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE
)
_LONGEST_TRACEBACK = 16_000  # characters, of its end


def poisons(error: BaseException) -> bool:
    """Whether this error leaves the CUDA context of the process unusable."""
    code = getattr(error, "error_code", None)
    if isinstance(code, int):
        return code in POISON
    said = _said(error)
    return "CUDA" in said and _POISON_TEXT.search(said) is not None


def out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had no memory left."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY_TEXT.search(_said(error)) is not None


def failure(error: BaseException) -> Failure:
    """What the item's outcome says of it."""
    said = _said(error)
    message = f"{type(error).__name__}: {said}" if said else type(error).__name__
    try:
        text = "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:]
    except Exception:
        text = message
    if isinstance(error, ItemError):
        return Failure(error.kind, error.message, error.traceback or text)
    return Failure(Kind.OUT_OF_MEMORY if out_of_memory(error) else Kind.PROCESSOR, message, text)


def _said(error: BaseException) -> str:
    """Its text; a user's exception may not even have one."""
    try:
        return str(error)
    except Exception:
        return ""
