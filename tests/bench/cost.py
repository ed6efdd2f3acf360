"""CPU seconds per GB (10**9 bytes) of fetching and landing with the processor `none`, beside curl and aiohttp's users.

Ours is all of the process's CPU time less that of a run of an empty manifest; the peer's is that of its job alone, from
its first request on, so that its imports are not held against it.

A virtual machine may have given its free memory back to its host, and whoever touches it next pays for getting it back
(printed first: what touching memory costs at once, and what it costs again right afterwards). Both comparisons have
that in them. The figures "memory touched before" are of runs right after another process touched as much memory and
freed it again, so they are of the program alone.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from typing import Any

from tests.bench.measure import Figure, conclude, gpufeed, harness, print_machine, scratch, succeed
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


def touch_cpu_s(size: int) -> float:
    """What it costs a process to touch so many bytes of memory."""
    return succeed([sys.executable, "-m", "tests.bench.touched", str(size)], timeout_s=60).cpu_s


def touched_cpu_s_per_gb(args: argparse.Namespace, tls: bool, start_s: float) -> float:
    """The median of ours, each run right after its memory was touched."""
    sys.path.insert(0, str(harness()))
    harness_origin = importlib.import_module("origin").Origin
    costs = []
    with scratch() as folder, harness_origin(args.count, args.size_mb, 0, tls) as origin:
        manifest = folder / "manifest.jsonl"
        origin.write_manifest(manifest)
        env = {"SSL_CERT_FILE": str(origin.cafile)} if tls else {}
        for turn in range(args.rounds):
            touch_cpu_s(3 * origin.size)
            command = gpufeed(manifest, folder / f"out-{turn}", processor="none")
            costs.append(succeed(command, timeout_s=120, env=env).cpu_s)
    return (statistics.median(costs) - start_s) / (args.count * args.size_mb / 1000)


def main() -> int:
    args = arguments()
    print_machine()
    start_s = start_cpu_s(args.rounds)
    print(f"a run of an empty manifest: {start_s:.2f} CPU-s", flush=True)
    touch, again = touch_cpu_s(2 * 10**9), touch_cpu_s(2 * 10**9)
    print(f"touching 2 GB of memory: {touch:.2f} CPU-s, and again {again:.2f} CPU-s", flush=True)
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
        touched = touched_cpu_s_per_gb(args, scheme == "https", start_s)
        figures.append(Figure(f"{scheme}, memory touched before", touched, limit, "CPU-s/GB"))
    return conclude(figures)


if __name__ == "__main__":
    sys.exit(main())
