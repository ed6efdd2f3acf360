"""Every exception, cut by who must react: the item, the lane, the run, or the operator.

They share no root: whoever catches one names who is meant.
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Why an item failed; the whole list, as it stands in `results.jsonl`."""

    HTTP_STATUS = "http_status"
    NOT_FOUND = "not_found"
    FORBIDDEN = "forbidden"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"
    RANGE = "range"
    CHANGED = "changed"
    INTEGRITY = "integrity"
    ENCODING = "encoding"
    REDIRECT = "redirect"
    TLS = "tls"
    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"
    DECODE = "decode"
    PROCESSOR = "processor"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE = "device"
    CRASHED = "crashed"
    ITEM_TIMEOUT = "item_timeout"
    CANCELLED = "cancelled"


class ItemError(Exception):
    """This item fails; the others go on. A processor may raise it to name the kind itself."""

    def __init__(self, kind: Kind, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.traceback = traceback


class LaneError(Exception):
    """This lane's device is lost; its items go back, and other lanes go on."""


class RunError(Exception):
    """The run cannot go on; the same command continues it when the cause is mended (exit 3)."""


class UsageError(Exception):
    """The operator mends something; said in one line, without a traceback (exit 2)."""
