"""`none`: nothing is done, which tells how fast bytes come in and land."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from app.items import Item

if TYPE_CHECKING:
    from app.processors import DeviceInfo


class Nothing:
    """Takes whole blobs on the device and leaves them alone; the result is null."""

    lands_on: ClassVar[Literal["device", "host"]] = "device"
    streams: ClassVar[bool] = False
    needs_torch: ClassVar[bool] = False

    def open(self, device: DeviceInfo) -> None: ...

    def process(self, blob: Any, item: Item) -> None: ...

    def close(self) -> None: ...
