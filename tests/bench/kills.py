"""Kill a run at random moments and at named points, start it again until it is done, and check that all is right."""

from __future__ import annotations

import argparse
import random
import sys

from tests.bench.launch import POINTS
from tests.bench.measure import MB, Figure, conclude, print_machine, scratch
from tests.bench.origins import Origin
from tests.bench.trial import Blob, Trial


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12, help="blobs (default: %(default)s)")
    parser.add_argument("--size-mb", type=float, default=600, help="of each (default: %(default)s)")
    parser.add_argument("--run-s", type=float, default=60, help="what a whole run would last (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="at random moments (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: %(default)s)")
    parser.add_argument("--timeout-s", type=float, default=180, help="of one start (default: %(default)s)")
    return parser.parse_args()


def kill_at_random(trial: Trial, args: argparse.Namespace) -> int:
    """Kill so often, each time when the run may have done an item or two; returns how often it was alive by then."""
    moments, item_s, killed = random.Random(args.seed), args.run_s / args.count, 0
    for number in range(args.kills):
        after_s = moments.uniform(0.1, 2 * item_s)
        killed += trial.kill_after(after_s)
        print(f"kill {number + 1}: after {after_s:.2f} s, {len(trial.committed())} committed", flush=True)
    return killed


def main() -> int:
    args = arguments()
    print_machine()
    size = round(args.size_mb * MB)
    rate = round(args.count * size / args.run_s / 8)  # of each of the 8 connections that a lane has
    with scratch() as folder, Origin(args.count, size, distinct=args.count, rate=rate) as origin:
        blobs = {item_id: Blob(origin.path(int(item_id)), digest) for item_id, digest in origin.sha256s().items()}
        manifest = origin.write_manifest(folder / "manifest.jsonl")
        trial = Trial(manifest, folder / "out", blobs, timeout_s=args.timeout_s)
        for point in POINTS:
            trial.kill_at(point)
            print(f"killed at the point {point}, {len(trial.committed())} committed", flush=True)
        killed = kill_at_random(trial, args)
        trial.finish()
        trial.check()
    print(f"{trial.starts} starts")
    for fault in trial.faults:
        print(f"FAULT {fault}")
    return conclude(
        [
            Figure("killed at random moments", killed, args.kills, "times", at_least=True),
            Figure("faults: outcomes, digests, artifacts, items done again", len(trial.faults), 0, ""),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
