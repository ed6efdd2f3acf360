"""Which item may have its landing now: on the host or on the GPU, within the lane's budgets, oldest first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from app.errors import ItemError, Kind
from app.items import format_binary
from app.lanes.arena import HostLandings, Memory
from app.lanes.budgets import Plan
from app.lanes.opened import OpenItem, State
from app.lanes.steps import Landing


class Landings:
    """The landings of one lane. Streams need none.

    An item of unknown length grows on the host while it is received, one at a time; no landing is given to another
    meanwhile, nor until it has its room on the GPU, so that what the others hold comes back, and it gets all there is.
    """

    def __init__(self, plan: Plan) -> None:
        self._pages = ThreadPoolExecutor(1, thread_name_prefix="pages")
        self.host = HostLandings(plan.landing_bytes, self._make_pages)
        self.device_bytes = plan.device_bytes  # for landings on the GPU; None until the device has said what is free
        self._plan = plan
        self._device_used = 0
        self._growing: OpenItem | None = None
        self._freed = asyncio.Event()
        self._closed = False

    def check_fits(self, opened: OpenItem) -> None:
        """Raises: ItemError where its landing can never fit."""
        if self._plan.streams or opened.size is None:
            return
        on_device = self._plan.lands_here
        budget = self.device_bytes if on_device else self._plan.landing_bytes
        if budget is not None and opened.size > budget:
            raise self._too_large(f"{opened.item.id}: its {opened.size} bytes", budget, on_device=on_device)

    def reserve(self, opened: OpenItem, items: Sequence[OpenItem]) -> bool:
        """Reserve its landing; False while there is no room, or an older one of these items waits for some."""
        if self._plan.streams:
            return True
        if self._growing is not None or not self._is_next(opened, items):
            return False
        if opened.lengthless:
            if self._plan.connections == 1 and any(other.state is State.RECEIVING for other in items):
                return False  # it might wait for their memory, with nobody left to receive them
            opened.memory, self._growing = self.host.open_ended(), opened
            return True
        if self._plan.lands_here:
            opened.landing = self._on_device(opened.size or 0)
        else:
            opened.memory = self.host.reserve(opened.size or 0)
        return opened.holds_landing

    def take_device_room(self, opened: OpenItem) -> bool:
        """As `Intake.take_device_room`."""
        if self._plan.lands_here and opened.landing is None:
            opened.landing = self._on_device(opened.size or 0)
            return opened.landing is not None
        return True

    def has_grown(self, opened: OpenItem) -> bool:
        """Whether this is the item that grew; it has what it needs then, and others may have landings again."""
        if opened is not self._growing:
            return False
        self._growing = None
        return True

    def give_back(self, opened: OpenItem) -> None:
        """Take back what the item has; nobody writes to it any more."""
        if opened.memory is not None:
            memory, opened.memory = opened.memory, None
            self.host.release(memory)
        if opened.landing is not None:
            self._device_used -= opened.landing.length
            opened.landing = None
        self.has_grown(opened)
        self._freed.set()

    async def wait_for_room(self, opened: OpenItem, room_bytes: int) -> None:
        """Wait until another item gives memory back.

        Raises: ItemError where there is none that could.
        """
        assert opened.memory is not None
        if self.host.used <= opened.memory.touched:
            what = f"{opened.item.id}: it is of unknown length, and its first {room_bytes} bytes"
            raise self._too_large(what, self._plan.landing_bytes, on_device=False)
        self._freed.clear()
        await self._freed.wait()

    def close(self) -> None:
        """Make no more pages."""
        self._closed = True
        self._pages.shutdown(wait=False, cancel_futures=True)

    def _make_pages(self, memory: Memory, start: int, stop: int) -> None:
        if not self._closed:
            self._pages.submit(memory.populate, start, stop)

    def _is_next(self, opened: OpenItem, items: Sequence[OpenItem]) -> bool:
        for older in items:
            if older is opened:
                break
            if older.state is State.WAITING or (opened.lengthless and not older.holds_landing):
                return False
        return True

    def _on_device(self, length: int) -> Landing | None:
        if self.device_bytes is None or self._device_used + length > self.device_bytes:
            return None
        self._device_used += length
        return Landing(length)

    def _too_large(self, what: str, budget: int, *, on_device: bool) -> ItemError:
        setting = "--device-buffer" if on_device else "--host-buffer"
        now = format_binary(budget) if on_device else self._plan.host_setting
        return ItemError(
            Kind.TOO_LARGE, f"{what} do not fit in a landing of at most {budget} bytes; raise {setting} (now {now})"
        )
