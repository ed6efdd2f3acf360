"""Peak resident memory of `stats` over that of its imports, for many blobs and for a single one many times as big."""

from __future__ import annotations

import argparse
import statistics
import sys

from app.items import parse_size
from tests.bench.measure import MB, Figure, conclude, gpufeed, print_machine, scratch, succeed
from tests.bench.origins import Origin

MIB = 1 << 20
ALLOWED_BYTES = 96 * MIB  # beside the host buffer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12, help="blobs (default: %(default)s)")
    parser.add_argument("--size-mb", type=float, default=600, help="of each (default: %(default)s)")
    parser.add_argument("--big-mb", type=float, default=8000, help="the single one, sparse (default: %(default)s)")
    parser.add_argument("--host-buffer", default="256MiB", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--timeout-s", type=float, default=180, help="of one run (default: %(default)s)")
    return parser.parse_args()


def peak_bytes(origin: Origin, args: argparse.Namespace) -> int:
    """The largest of the rounds' peaks."""
    peaks = []
    for _ in range(args.rounds):
        with scratch() as folder:
            manifest = origin.write_manifest(folder / "manifest.jsonl")
            command = gpufeed(manifest, folder / "out", processor="stats", host_buffer=args.host_buffer)
            took = succeed(command, timeout_s=args.timeout_s)
            peaks.append(took.peak_bytes)
        gb = origin.count * origin.size / 1e9
        print(f"{gb:.1f} GB: peak {took.peak_bytes / MIB:.0f} MiB, {took.wall_s:.1f} s, CPU {took.cpu_s:.1f} s")
    return max(peaks)


def main() -> int:
    args = arguments()
    print_machine()
    imports = [sys.executable, "-c", "import torch, aiohttp"]
    base = round(statistics.median(succeed(imports, timeout_s=60).peak_bytes for _ in range(args.rounds)))
    print(f"import torch, aiohttp: {base / MIB:.0f} MiB")
    with Origin(args.count, round(args.size_mb * MB)) as origin:
        many = peak_bytes(origin, args)
    with Origin(1, round(args.big_mb * MB), sparse=True) as origin:
        one = peak_bytes(origin, args)
    limit = (parse_size(args.host_buffer) + ALLOWED_BYTES) / MIB
    return conclude(
        [
            Figure(f"over the imports, {args.count} x {args.size_mb:g} MB", (many - base) / MIB, limit, "MiB"),
            Figure(f"over the imports, 1 x {args.big_mb:g} MB", (one - base) / MIB, limit, "MiB"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
