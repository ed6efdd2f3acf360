"""Items, outcomes and ledgers for tests."""

from pathlib import Path

from app.errors import Kind
from app.items import Failure, Item, Outcome, Seconds, Status
from app.ledger import Added, Ledger


def item(name: str, **fields: object) -> Item:
    return Item(name, f"https://example.org/{name}", **fields)


def outcome(name: str, kind: Kind | None = None, result: object = None) -> Outcome:
    return Outcome(
        id=name,
        url=f"https://example.org/{name}",
        status=Status.FAILED if kind else Status.DONE,
        bytes=100,
        device="cpu:0",
        attempts=1,
        result=result,
        artifacts=(f"artifacts/{name}.bin",),
        error=Failure(kind, "no", "Traceback …") if kind else None,
        seconds=Seconds(1.0, 2.0, 3.0),
        finished_at="2026-01-01T00:00:00Z",
    )


def opened(folder: Path, processor: str = "stats", **arguments: object):
    return Ledger.open(folder, processor=processor, arguments=arguments)


async def read_in(ledger: Ledger, *items: Item, digest: str | None = None) -> Added:
    await ledger.begin_reading()
    added = await ledger.add(list(enumerate(items, 1)))
    await ledger.end_reading(digest)
    return added


def ids(items: list[Item]) -> list[str]:
    return [one.id for one in items]
