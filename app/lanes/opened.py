"""One open item of a lane: what of it is asked for, has arrived, and is consumed. No I/O: it only decides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from app.errors import ItemError, Kind
from app.items import Item, Part
from app.lanes.arena import Memory, Slab
from app.sources import Answer, StartOver, Version

if TYPE_CHECKING:
    from app.lanes.sinks import PartSink
    from app.lanes.steps import Landing


_LEAST_WINDOWS = 4  # of a part: a request has its price


class State(Enum):
    ASKING = auto()  # its size is not known yet
    WAITING = auto()  # its size is known, or known to be unknown; its landing has no room yet
    RECEIVING = auto()
    RESTARTING = auto()  # until the last reader has let go of it, to be fetched anew
    WHOLE = auto()
    ON_DEVICE = auto()
    ENDED = auto()


_NEXT = {
    State.ASKING: {State.WAITING, State.RECEIVING, State.RESTARTING, State.ENDED},
    State.WAITING: {State.RECEIVING, State.RESTARTING, State.ENDED},
    State.RECEIVING: {State.RESTARTING, State.WHOLE, State.ENDED},
    State.RESTARTING: {State.ASKING, State.WAITING, State.ENDED},
    State.WHOLE: {State.ON_DEVICE, State.RESTARTING, State.ENDED},
    State.ON_DEVICE: {State.RESTARTING, State.ENDED},
    State.ENDED: set(),
}


@dataclass(slots=True, eq=False)
class Work:
    """A part in a reader's hands."""

    opened: OpenItem
    part: Part | None  # None: the whole body, without ranges
    task: asyncio.Task[None]
    start: int  # which fetch of the item, as `OpenItem.starts` counts them
    stop: int | None = None  # where it ends, from the first answer on; None: where the body does
    sink: PartSink | None = None  # from the first answer on
    abandoned: bool = False  # the reader is being interrupted: it lets go of the part without a word


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes that have arrived: `length` of them from `offset` on, in a slab, or in the host landing already."""

    opened: OpenItem
    start: int  # as `Work.start`
    offset: int
    length: int
    slab: Slab | None


@dataclass(slots=True)
class Span:
    """From the first start to the last end, in seconds of the loop's clock."""

    began_at_s: float | None = None
    ended_at_s: float = 0.0

    def add(self, began_at_s: float, ended_at_s: float) -> None:
        self.began_at_s = began_at_s if self.began_at_s is None else min(self.began_at_s, began_at_s)
        self.ended_at_s = max(self.ended_at_s, ended_at_s)

    @property
    def seconds(self) -> float:
        return self.ended_at_s - self.began_at_s if self.began_at_s is not None else 0.0


@dataclass(slots=True, eq=False)
class OpenItem:
    """An item between its claim and its outcome."""

    item: Item
    order: int  # in the lane; lower is older
    part_bytes: int  # the longest part, whole windows
    window_bytes: int
    readers: int  # of its lane
    eager: bool = False  # its server is known to honour ranges: parts are asked for before the first answer
    size: int | None = None
    version: Version | None = None
    state: State = State.ASKING
    starts: int = 1  # how often its fetch has begun
    tries: int = 1  # what the outcome's `attempts` says
    memory: Memory | None = None  # the landing, where it is on the host
    landing: Landing | None = None  # the landing, where it is on a GPU
    lengthless: bool = False  # only the end of its body will tell its size
    works: set[Work] = field(default_factory=set)
    received_bytes: int = 0
    landed_bytes: int = 0  # in the landing, or for streams: in a slab, or consumed
    landing_windows: int = 0  # being copied to a GPU
    windows: dict[int, Window] = field(default_factory=dict)  # of streams: arrived and not consumed, by offset
    handed_bytes: int = 0  # of streams: handed to the device thread
    consumed_bytes: int = 0  # of streams: `update` has returned
    begun: bool = False  # of streams: `begin` has been called in this start
    whole_next: bool = False  # when it starts over, ask for no ranges
    retried_alone: bool = False  # after the device ran out of memory
    receive: Span = field(default_factory=Span)
    land: Span = field(default_factory=Span)
    process: Span = field(default_factory=Span)
    _cursor: int | None = 0  # the first byte that no part covers yet; None: all have been handed out
    _answered: bool = False
    _without_ranges: bool = False

    def __post_init__(self) -> None:
        self.size = self.item.size
        if self.size is not None:
            self.state = State.WAITING

    def to(self, state: State) -> None:
        """Go to another state, along the table."""
        if state not in _NEXT[self.state]:
            raise AssertionError(f"{self.item.id}: from {self.state.name} to {state.name}")
        self.state = state

    @property
    def has_parts(self) -> bool:
        """Whether a reader could take a part now."""
        if self.state is State.ASKING:
            return not self.works
        if self.state is not State.RECEIVING or self._cursor is None:
            return False
        return self._answered or self.eager or not self.works

    @property
    def parts_left(self) -> bool:
        """Whether parts of it are still to be handed out in this start."""
        return self._cursor is not None

    def next_part(self) -> Part | None:
        """Hand out the next part; None stands for the whole body. Only where `has_parts`."""
        if self.state is State.ASKING:
            return None if self._without_ranges else Part(0, self.part_bytes)
        if self._without_ranges or not self.size or self._cursor is None:
            self._cursor = None
            return None
        part = Part(self._cursor, min(self._cursor + self._next_bytes(self.size - self._cursor), self.size))
        self._cursor = part.stop if part.stop < self.size else None
        return part

    def _next_bytes(self, left: int) -> int:
        """How long the next part is: an equal share of what is left for each reader, so that parts shrink towards the
        end and the last ones end together; an item's last part would else come in beside the next item's."""
        share = -(-left // (self.readers * self.window_bytes)) * self.window_bytes
        return min(self.part_bytes, max(share, _LEAST_WINDOWS * self.window_bytes))

    def believe(self, answer: Answer) -> None:
        """Take up what an answer says of the whole item.

        Raises: ItemError where it contradicts the manifest; StartOver where it has become another version.
        """
        total = answer.version.total
        if self.item.size is not None and total is not None and total != self.item.size:
            raise ItemError(
                Kind.INTEGRITY, f"{self.item.id}: the manifest says {self.item.size} bytes, its source has {total}"
            )
        reason = self.version.differs(answer.version) if self.version is not None else None
        if reason is not None:
            raise StartOver(f"{self.item.id}: the item changed while it was fetched: {reason}")
        if self.version is None:
            self.version = answer.version
        if self.size is None and total is None and answer.ranges:
            raise StartOver(f"{self.item.id}: its server sends ranges of an unknown total", whole=True, kind=Kind.RANGE)
        if self.lengthless and total is not None:  # its landing was reserved as one that grows
            raise StartOver(f"{self.item.id}: its server says a length now, and said none before")
        self._answered = True
        if self.size is None:
            self.size = total
            self.lengthless = total is None

    def accept(self, answer: Answer, work: Work) -> int | None:
        """Where the body or bodies for this work will end; None: where the first one does.

        Raises: StartOver where its source turns out to send whole bodies only.
        """
        part = work.part
        if answer.ranges and part is not None:
            assert self.size is not None
            stop = min(part.stop, self.size)
            if self.state is State.ASKING:
                self._cursor = stop if stop < self.size else None
            return stop
        if len(self.works) > 1 or (self.received_bytes and not answer.ranges and work.sink is None):
            raise StartOver(f"{self.item.id}: its server sends whole bodies only", whole=True, kind=Kind.RANGE)
        self._without_ranges, self._cursor = True, None
        return self.size

    def start_over(self) -> None:
        """Forget what has arrived; the landing has been given back. Only when no reader has a part of it."""
        assert not self.works
        assert self.memory is None
        assert self.landing is None
        self.starts += 1
        self.tries += 1
        self._without_ranges = self._without_ranges or self.whole_next
        self.version, self._answered, self._cursor, self.lengthless = None, False, 0, False
        self.received_bytes = self.landed_bytes = self.handed_bytes = self.consumed_bytes = 0
        self.begun = False
        self.size = self.item.size
        self.to(State.ASKING if self.size is None else State.WAITING)

    def park(self) -> None:
        """Its size is known now, but its landing has no room: its parts are handed out when it has."""
        self._cursor = 0
        self.to(State.WAITING)

    @property
    def holds_landing(self) -> bool:
        return self.memory is not None or self.landing is not None
