"""CPU seconds per GB (10**9 bytes) of fetching and landing with the processor `none`, beside curl and aiohttp's users.

Ours is all of the process's CPU time less that of a run of an empty manifest; the peer's is that of its job alone, from
its first request on, so that its imports are not held against it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from tests.bench.measure import Figure, conclude, gpufeed, print_machine, scratch, succeed
from tests.bench.peers import compare

LIMITS = {"http": 0.35, "https": 0.70}  # CPU-s/GB
PEER = "aiohttp-plain"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=12, help="blobs (default: %(default)s)")
    parser.add_argument("--size-mb", type=float, default=600, help="of each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--timeout-s", type=float, default=900, help="of one comparison (default: %(default)s)")
    return parser.parse_args()


def start_cpu_s(rounds: int) -> float:
    """What a run costs that has nothing to fetch."""
    costs = []
    for _ in range(rounds):
        with scratch() as folder:
            manifest = folder / "manifest.jsonl"
            manifest.touch()
            costs.append(succeed(gpufeed(manifest, folder / "out", processor="none"), timeout_s=60).cpu_s)
    return statistics.median(costs)


def main() -> int:
    args = arguments()
    print_machine()
    start_s = start_cpu_s(args.rounds)
    print(f"a run of an empty manifest: {start_s:.2f} CPU-s", flush=True)
    figures = []
    total_gb = args.count * args.size_mb / 1000
    options = ["--count", str(args.count), "--size-mb", str(args.size_mb), "--rounds", str(args.rounds)]
    for scheme, limit in LIMITS.items():
        rows: dict[str, Any] = compare(
            ["curl", PEER],
            options=[*options, "--device-ms", "0", *(["--tls"] if scheme == "https" else [])],
            timeout_s=args.timeout_s,
            processor="none",
        )
        ours = rows["ours"]["cpu_s_per_gb"] - start_s / total_gb
        peer, curl = rows[PEER]["job_cpu_s_per_gb"], rows["curl"]["cpu_s_per_gb"]
        print(f"{scheme}: ours {ours:.3f}, {PEER} {peer:.3f}, curl {curl:.3f} CPU-s/GB", flush=True)
        figures.append(Figure(f"{scheme}, transfer and landing", ours, limit, "CPU-s/GB"))
        figures.append(Figure(f"{scheme}, of what {PEER} takes", ours / peer, 1 / 3, ""))
    return conclude(figures)


if __name__ == "__main__":
    sys.exit(main())
