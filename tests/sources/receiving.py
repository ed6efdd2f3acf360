"""A sink that takes everything, for tests of sources."""

from __future__ import annotations

from app.items import Item, Part
from app.sources import Answer, Source, Version


class Heap:
    """Memory for a whole body, all of it at once."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        self.position = 0

    def view(self) -> memoryview | None:
        return memoryview(self.memory)[self.position :] if self.position < len(self.memory) else None

    def advance(self, count: int) -> None:
        self.position += count

    async def wait(self) -> None:
        raise AssertionError("more bytes came than there should be")

    @property
    def received(self) -> bytes:
        return bytes(self.memory[: self.position])


async def fetch(
    source: Source, item: Item, part: Part | None = None, known: Version | None = None, room: int = 1 << 20
) -> tuple[Answer, bytes]:
    """Ask for a part, and receive what is sent."""
    reply = await source.ask(item, part, known)
    sink = Heap(room if reply.answer.length is None else reply.answer.length)
    await reply.receive(sink)
    return reply.answer, sink.received
