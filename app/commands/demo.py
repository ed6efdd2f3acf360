"""`demo`: a run as everyone would start it, on blobs from an origin of its own, one of which fails on purpose."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.commands.origin import Blob, Origin, generate
from app.errors import Kind
from app.exports import read_outcomes
from app.items import Outcome, format_size
from app.results import RESULTS
from app.run import Summary
from app.settings import Settings

BLOB_BYTES = 64 << 20
BLOBS: Mapping[str, int] = {"blob-1": 8, "blob-2": 7, "blob-3": 6, "blob-5": 4, "blob-6": 1}  # bits of entropy a byte
MISSING = "blob-4"


def demo(flags: Mapping[str, Any], execute: Callable[[Settings], Summary], say: Callable[[str], None]) -> int:
    """Run `stats` on the blobs into the output folder that the flags name; 0 when all went as intended.

    An output folder from before is moved aside. Raises: UsageError, RunError, as a run does.
    """
    blobs = {name: generate(BLOB_BYTES, bits, bits) for name, bits in BLOBS.items()}
    with tempfile.TemporaryDirectory(prefix="gpufeed-demo-") as folder, Origin(blobs) as origin:
        manifest = Path(folder) / "manifest.jsonl"
        manifest.write_text(manifest_text(origin, blobs))
        settings = Settings.read(**flags, **_fixed(manifest))
        summary = execute(settings)
    if summary.signalled is not None:
        return 128 + summary.signalled
    output = Path(settings.output)
    for outcome in read_outcomes(output):
        say(_described(outcome))
    intended = summary.counts.done == len(BLOBS) and summary.counts.failed == {Kind.NOT_FOUND: 1}
    say("")
    if not intended:
        say(f"Only {MISSING} was to fail; `python -m app doctor` looks for what is wrong with this machine.")
        return 1
    say(f"{MISSING} failed on purpose: the origin does not have it. The outcomes are in {output / RESULTS}.")
    say("What to try next:")
    say(f"  python -m app results {output} --format csv      the same as a table")
    say("  python -m app run manifest.txt                   your own blobs, a URL or path a line")
    say("  python -m app run --help                         every setting, and your own function")
    return 0


def manifest_text(origin: Origin, blobs: Mapping[str, Blob]) -> str:
    """A manifest of these blobs and the one that is missing, as JSON lines."""
    names = sorted([*blobs, MISSING])
    lines = [json.dumps({"id": name, "url": origin.url(name), "size": BLOB_BYTES}) for name in names]
    return "\n".join(lines) + "\n"


def _fixed(manifest: Path) -> Mapping[str, Any]:
    """Settings that the environment has no say in: they would make it another run."""
    return {
        "manifest": str(manifest),
        "manifest_format": "auto",
        "limit": None,
        "dry_run": False,
        "processor": "stats",
        "processor_args": {},
        "fresh": True,  # each time the origin has another port, and so the items other URLs
        "retry_failed": False,
    }


def _described(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"{outcome.id}  {outcome.error.kind}: {outcome.error.message}"
    result = outcome.result
    return (
        f"{outcome.id}  {format_size(outcome.bytes)}, mean {result['mean']:.2f},"
        f" entropy {result['entropy']:.2f} bits a byte"
    )
