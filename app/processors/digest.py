"""`digest`: an item's digest, hashed window by window in host memory."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from app.errors import UsageError
from app.items import Item

if TYPE_CHECKING:
    from app.processors import DeviceInfo

_ALGORITHMS = sorted(name for name in hashlib.algorithms_guaranteed if not name.startswith("shake"))


class Digest:
    """The digest by `algorithm`, in hexadecimal digits, and the number of bytes: `{"sha256": "9f86…", "bytes": 4}`.

    Hashing holds no lock of the interpreter, so that receiving goes on beside it.
    """

    lands_on: ClassVar[Literal["device", "host"]] = "host"
    streams: ClassVar[bool] = True
    needs_torch: ClassVar[bool] = False

    def __init__(self, algorithm: str = "sha256") -> None:
        try:
            size = hashlib.new(algorithm, usedforsecurity=False).digest_size
        except (ValueError, TypeError):
            size = 0
        if not size:  # unknown, or one whose digests have no length of their own (SHAKE)
            raise UsageError(f"digest knows no algorithm {algorithm!r}; it knows {', '.join(_ALGORITHMS)}")
        self._algorithm = algorithm
        self._bytes = 0
        self._hash = hashlib.new(algorithm, usedforsecurity=False)

    def open(self, device: DeviceInfo) -> None: ...

    def begin(self, item: Item) -> None:  # noqa: ARG002  # the protocol's
        self._bytes = 0
        self._hash = hashlib.new(self._algorithm, usedforsecurity=False)

    def update(self, window: memoryview, offset: int) -> None:  # noqa: ARG002  # windows come without gaps
        self._hash.update(window)
        self._bytes += window.nbytes

    def finish(self, item: Item) -> dict[str, Any]:  # noqa: ARG002  # the protocol's
        return {self._algorithm: self._hash.hexdigest(), "bytes": self._bytes}

    def close(self) -> None: ...
