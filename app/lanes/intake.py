"""The receiving half of a lane: which items are open, which part is next, and where its bytes may go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from app.errors import ItemError, Kind
from app.items import Failure, Item
from app.lanes.arena import Slabs
from app.lanes.budgets import Plan
from app.lanes.landings import Landings
from app.lanes.opened import OpenItem, State, Window, Work
from app.lanes.sinks import GrowingSink, LandingSink, PartSink, SlabSink
from app.sources import Answer, Source, StartOver, TryAgain

MOST_OPEN = 256  # items
_CLAIMED_AT_ONCE = 64


class Intake:
    """Open items, oldest first. What arrives goes to `arrived`; an item that fails, to `failed`, once."""

    def __init__(
        self,
        plan: Plan,
        source: Callable[[Item], Source],
        attempts: int,
        arrived: Callable[[Window], None],
        failed: Callable[[OpenItem, Failure], None],
    ) -> None:
        self.plan = plan
        self.slabs = Slabs(plan.slabs, plan.window_bytes)
        self.landings = Landings(plan)
        self.items: list[OpenItem] = []
        self.room = asyncio.Event()  # there may be room to open another item
        self.received_bytes = 0  # of items that have left
        self.held_back = False  # too many outcomes wait to be reported
        self.freed: Callable[[], None] = _nothing  # told whenever a landing has been given back
        self.dropped: Callable[[OpenItem], None] = _nothing  # told of an item that nothing is to be consumed of for now
        self._source = source
        self._attempts = attempts
        self._arrived = arrived
        self._failed = failed
        self._with_parts: list[OpenItem] = []
        self._parts_changed = asyncio.Event()
        self._ranged: set[str] = set()  # origins that have answered a range with a range
        self._sizes = (0, 0)  # how many items' sizes have been seen, and their sum
        self._order = 0
        self._closed = False
        self.room.set()

    # Opening and closing items:

    def wanted(self) -> int:
        """How many items should be claimed now."""
        if self.held_back:
            return 0
        if not self.items:
            return _CLAIMED_AT_ONCE if self._typical_bytes * _CLAIMED_AT_ONCE <= self.plan.read_ahead_bytes else 1
        ahead = sum(self._typical_bytes if opened.size is None else opened.size for opened in self.items[1:])
        spare = (self.plan.read_ahead_bytes - ahead) // max(self._typical_bytes, 1)
        count = min(spare, _CLAIMED_AT_ONCE, MOST_OPEN - len(self.items))
        if len(self.items) == 1:
            return max(count, 1)
        # Few at a time would ask the feed for every single small item.
        return count if count >= min(len(self.items), _CLAIMED_AT_ONCE // 2) else 0

    def open(self, item: Item) -> OpenItem:
        """Take an item in; it may fail at once."""
        self._order += 1
        url = item.url or ""
        plan, eager = self.plan, _origin(url) in self._ranged
        opened = OpenItem(item, self._order, plan.part_bytes, plan.window_bytes, plan.connections, eager)
        self.items.append(opened)
        self._with_parts.append(opened)
        if item.size is not None:
            self._seen(item.size)
        try:
            if not url:
                raise ItemError(Kind.UNSUPPORTED, f"{item.id}: it has no url")
            self.landings.check_fits(opened)
        except ItemError as error:
            self.fail_item(opened, Failure(error.kind, error.message))
        else:
            self.admit()
            self._parts_changed.set()
        return opened

    def fail_item(self, opened: OpenItem, failure: Failure) -> None:
        """End it as failed, whatever of it is under way."""
        if opened.state is not State.ENDED:
            self.end(opened)
            self._failed(opened, failure)

    def end(self, opened: OpenItem) -> None:
        """It needs nothing any more: its readers are interrupted; when they have let go, its memory is given back."""
        opened.to(State.ENDED)
        self._interrupt(opened)
        self.items.remove(opened)
        self.received_bytes += opened.received_bytes
        self._free(opened)
        self.slabs.review()
        self.room.set()

    def close(self) -> None:
        """There are no more items: readers end."""
        self._closed = True
        self._parts_changed.set()

    def restart(self, opened: OpenItem, why: StartOver) -> None:
        """Fetch it anew, when its readers have let go of it; fail it where that has been done too often."""
        if opened.state in (State.ENDED, State.RESTARTING):
            return
        if opened.starts >= self._attempts:
            self.fail_item(opened, Failure(why.kind, f"{why.message}; given up after {opened.starts} starts"))
            return
        opened.to(State.RESTARTING)
        self.dropped(opened)
        self._interrupt(opened)
        self._restart_if_free(opened, whole=why.whole)

    def landed(self, opened: OpenItem, length: int) -> bool:
        """So many more bytes are where they belong; whether the item is whole now."""
        opened.landed_bytes += length
        if opened.state is State.RECEIVING and opened.landed_bytes == opened.size:
            opened.to(State.WHOLE)
            return True
        return False

    def may_receive(self, opened: OpenItem, window: int) -> bool:
        """The receive window: whether the slab for this window of a stream may be granted.

        Windows are numbered through the open items from the frontier on, and those in the first `slabs` of them may.
        """
        if not self.plan.streams:
            return True
        ahead = 0
        for older in self.items:
            if older is opened:
                return ahead + window - opened.consumed_bytes // self.plan.window_bytes < self.plan.slabs
            if older.size is None:
                return False
            ahead += -(-(older.size - older.consumed_bytes) // self.plan.window_bytes)
        return True  # it has ended, and its reader is about to hear of it

    # What readers need (reader.Parts):

    async def take(self) -> Work | None:
        while not self._closed:
            for opened in list(self._with_parts):
                if opened.has_parts:
                    return self._hand_out(opened)
                if opened.state is State.ENDED or (opened.state is State.RECEIVING and not opened.parts_left):
                    self._with_parts.remove(opened)
            self._parts_changed.clear()
            await self._parts_changed.wait()
        return None

    def source(self, work: Work) -> Source:
        return self._source(work.opened.item)

    def answered(self, work: Work, answer: Answer) -> PartSink | None:
        opened = work.opened
        opened.believe(answer)
        if answer.ranges:
            self._ranged.add(_origin(opened.item.url or ""))
        if opened.state is State.ASKING:
            if opened.size is not None:
                self._seen(opened.size)
            self.landings.check_fits(opened)
            if not self.landings.reserve(opened, self.items):
                opened.park()
                return None
            work.stop = opened.accept(answer, work)
            opened.to(State.RECEIVING)
            self.slabs.review()
            self._parts_changed.set()
        elif work.sink is None:
            work.stop = opened.accept(answer, work)
            self._parts_changed.set()
        elif not answer.ranges and work.stop != opened.size:
            raise StartOver(f"{opened.item.id}: its server sends whole bodies now", whole=True, kind=Kind.RANGE)
        if work.sink is not None:
            return work.sink
        return self._sink(opened, answer.start, work.stop)

    def complete(self, work: Work) -> None:
        self.landings.check_fits(work.opened)
        if not self.plan.lands_here and self.landings.has_grown(work.opened):
            self.admit()

    def fail(self, work: Work, error: ItemError | TryAgain) -> None:
        self.fail_item(work.opened, Failure(error.kind, error.message))

    def start_over(self, work: Work, why: StartOver) -> None:
        self.restart(work.opened, why)

    def let_go(self, work: Work) -> None:
        opened = work.opened
        opened.works.discard(work)
        if work.sink is not None:
            work.sink.give_up()
        if opened.state is State.ENDED:
            self._free(opened)
        elif opened.state is State.RESTARTING:
            self._restart_if_free(opened, whole=False)
        self._parts_changed.set()

    # Memory:

    def copied(self, opened: OpenItem) -> None:
        """A window has been copied to the GPU, or will not be."""
        opened.landing_windows -= 1
        if opened.state is State.ENDED:
            self._free(opened)
        elif opened.state is State.RESTARTING:
            self._restart_if_free(opened, whole=False)

    def take_device_room(self, opened: OpenItem) -> bool:
        """Reserve room on the GPU, where there is some, for an item that grew on the host and is to be processed."""
        taken = self.landings.take_device_room(opened)
        if taken and self.landings.has_grown(opened):
            self.admit()
        return taken

    def learn_device_bytes(self, device_bytes: int) -> None:
        """The device has said what is free: items that waited for that are let in, or fail."""
        self.landings.device_bytes = device_bytes
        for opened in list(self.items):
            try:
                self.landings.check_fits(opened)
            except ItemError as error:
                self.fail_item(opened, Failure(error.kind, error.message))
        self.admit()

    def _sink(self, opened: OpenItem, start: int, stop: int | None) -> PartSink:
        if self.plan.streams or opened.landing is not None:
            return SlabSink(opened, self.slabs, start, stop, self._arrived, self.may_receive)
        memory = opened.memory
        assert memory is not None
        if stop is None:
            window = self.plan.window_bytes
            host, wait = self.landings.host, self.landings.wait_for_room
            return GrowingSink(opened, host, memory, window, self._arrived, wait)
        view = memory.view(opened.size or 0)
        return LandingSink(opened, view, start, stop, self.plan.window_bytes, self._arrived)

    def admit(self) -> None:
        """Let items that wait for their landing have it, oldest first."""
        for opened in self.items:
            if opened.state is State.WAITING:
                if not self.landings.reserve(opened, self.items):
                    return
                opened.to(State.RECEIVING)
                self._offer(opened)

    def _free(self, opened: OpenItem) -> bool:
        """Give back its slabs, and its landing where nobody writes to it any more."""
        if opened.works or opened.landing_windows:
            return False
        for window in opened.windows.values():
            if window.slab is not None:
                self.slabs.release(window.slab)
        opened.windows.clear()
        self.landings.give_back(opened)
        self.admit()
        self.freed()
        return True

    # The rest:

    @property
    def _typical_bytes(self) -> int:
        count, total = self._sizes
        # Until one has been seen, an item may be of any size: then only one is read ahead.
        return total // count if count else self.plan.read_ahead_bytes + 1

    def _seen(self, size: int) -> None:
        count, total = self._sizes
        self._sizes = (count + 1, total + size)
        self.room.set()

    def _hand_out(self, opened: OpenItem) -> Work:
        task = asyncio.current_task()
        assert task is not None
        work = Work(opened, opened.next_part(), task, opened.starts)
        opened.works.add(work)
        return work

    def _interrupt(self, opened: OpenItem) -> None:
        for work in opened.works:
            if work.task is not asyncio.current_task() and not work.abandoned:
                work.abandoned = True
                work.task.cancel()

    def _restart_if_free(self, opened: OpenItem, *, whole: bool) -> None:
        opened.whole_next = opened.whole_next or whole
        if self._free(opened):
            self.received_bytes += opened.received_bytes
            self._to_the_end(opened)
            opened.start_over()
            self._offer(opened)
            self.admit()

    def _to_the_end(self, opened: OpenItem) -> None:
        """Make it the youngest. Were it to stay where it was, its windows, which start from none again, would be
        numbered before windows that have slabs already, and might never get any."""
        self._order += 1
        opened.order = self._order
        self.items.remove(opened)
        self.items.append(opened)
        if opened in self._with_parts:
            self._with_parts.remove(opened)

    def _offer(self, opened: OpenItem) -> None:
        """Parts of it may be taken."""
        if opened not in self._with_parts:
            self._with_parts.append(opened)
            self._with_parts.sort(key=lambda other: other.order)
        self._parts_changed.set()


def _nothing(*_: object) -> None: ...


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
