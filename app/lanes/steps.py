"""What a lane asks of its device, and what comes back: frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.errors import LaneError
from app.items import Failure, Item
from app.lanes.arena import Memory


@dataclass(frozen=True, slots=True)
class Process:
    item: Item
    blob: Any  # the landing: [n] uint8 on the device (None: n = 0), or a memoryview of n bytes of host memory
    memory: Memory | None  # the host memory that it is, or is a view of


@dataclass(frozen=True, slots=True)
class Begin:
    item: Item


@dataclass(frozen=True, slots=True)
class Update:
    item: Item
    window: memoryview
    offset: int
    memory: Memory


@dataclass(frozen=True, slots=True)
class Finish:
    item: Item


Step = Process | Begin | Update | Finish


@dataclass(frozen=True, slots=True)
class Done:
    """A step's result, copied out; of Process and Finish alone is it more than None."""

    value: Any
    began_at_s: float
    ended_at_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    failure: Failure
    began_at_s: float
    ended_at_s: float


@dataclass(frozen=True, slots=True)
class Copied:
    began_at_s: float
    ended_at_s: float


@dataclass(slots=True, eq=False)
class Landing:
    """An item's place in device memory, whose room has been reserved."""

    length: int
    tensor: Any = None  # [length] uint8 cuda


class DeviceLost(LaneError):
    """The device does nothing more in this process. The item that was on it is charged."""

    def __init__(self, device: str, message: str, item_id: str | None) -> None:
        super().__init__(f"{device} is lost: {message}")
        self.item_id = item_id
