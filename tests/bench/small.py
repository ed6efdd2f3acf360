"""Thousands of small blobs: items per second of the whole command, start-up, ledger and results included."""

from __future__ import annotations

import argparse
import statistics
import sys

from tests.bench.measure import Figure, Took, conclude, gpufeed, print_machine, results, scratch, succeed
from tests.bench.origins import Origin

LEAST_PER_S = 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="blobs (default: %(default)s)")
    parser.add_argument("--size-kb", type=float, default=100, help="of each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--timeout-s", type=float, default=120, help="of one run (default: %(default)s)")
    return parser.parse_args()


def one_round(origin: Origin, processor: str, timeout_s: float) -> tuple[Took, float]:
    """What the command took, and how long its job lasted: from the first request to the end."""
    origin.forget()
    with scratch() as folder:
        manifest, output = origin.write_manifest(folder / "manifest.jsonl"), folder / "out"
        took = succeed(gpufeed(manifest, output, processor=processor), timeout_s=timeout_s)
        done = sum(line["status"] == "done" for line in results(output))
    if done != origin.count:
        raise SystemExit(f"{done} items of {origin.count} are done")
    return took, took.ended_at_s - origin.first_request_at_s()


def main() -> int:
    args = arguments()
    print_machine()
    figures = []
    with Origin(args.count, round(args.size_kb * 1000)) as origin:
        for processor in ("none", "digest"):
            rounds = [one_round(origin, processor, args.timeout_s) for _ in range(args.rounds)]
            wall_s = statistics.median(took.wall_s for took, _ in rounds)
            job_s = statistics.median(job_s for _, job_s in rounds)
            cpu_s = statistics.median(took.cpu_s for took, _ in rounds)
            print(f"{processor}: wall {wall_s:.2f} s, job {job_s:.2f} s, CPU {cpu_s:.2f} s", flush=True)
            figures.append(Figure(f"{processor}, whole command", args.count / wall_s, LEAST_PER_S, "items/s", True))
            print(f"{processor}: {args.count / job_s:.0f} items/s from the first request on")
    return conclude(figures)


if __name__ == "__main__":
    sys.exit(main())
