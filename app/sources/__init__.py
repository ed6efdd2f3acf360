"""How bytes come in: what every source offers, and how it says what went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.errors import Kind
from app.items import Item, Part
from app.sources.sink import Sink


@dataclass(frozen=True, slots=True)
class Version:
    """What tells one version of an item's bytes from another: parts combine only where all of it agrees."""

    total: int | None  # bytes
    strong: str | None = None  # a strong ETag, or a file's identity
    dated: str | None = None  # Last-Modified

    def differs(self, other: Version) -> str | None:
        """Why these are not one version; None where nothing says so."""
        for name, mine, theirs in (
            ("size", self.total, other.total),
            ("ETag", self.strong, other.strong),
            ("Last-Modified", self.dated, other.dated),
        ):
            if mine is not None and theirs is not None and mine != theirs:
                return f"its {name} was {mine} and is {theirs}"
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a source is about to send for the part that was asked for."""

    start: int  # the item's byte that the body starts with
    length: int | None  # bytes of the body; None where only its end will tell
    version: Version
    ranges: bool  # whether other parts can be asked for


class Reply(Protocol):
    """An answer whose body waits to be received."""

    @property
    def answer(self) -> Answer: ...

    async def receive(self, sink: Sink) -> None:
        """Receive the body into the sink, whose next byte is the body's first.

        Afterwards, also when cancelled, nothing is written to the sink's memory any more.

        Raises: TryAgain, StartOver, ItemError.
        """

    async def abandon(self) -> None:
        """Give the body up at once."""


class Source(Protocol):
    async def ask(self, item: Item, part: Part | None, known: Version | None) -> Reply:
        """Ask for a part of an item, or for all of it without ranges, of this version where one is known.

        Raises: TryAgain, StartOver, ItemError.
        """


class TryAgain(Exception):
    """It may work another time; what has arrived stays."""

    def __init__(self, kind: Kind, message: str, *, after_s: float | None = None, charged: bool = True) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.after_s = after_s  # how long the server asked us to wait
        self.charged = charged  # False: nobody's failure; no attempt is counted, and there is no wait


class StartOver(Exception):
    """What has arrived is of no use: the item is fetched anew from its first byte."""

    def __init__(self, message: str, *, whole: bool = False, kind: Kind = Kind.CHANGED) -> None:
        super().__init__(message)
        self.message = message
        self.whole = whole  # the server sends only whole bodies: ask for no more ranges
        self.kind = kind  # how the item fails when it has started over too often
