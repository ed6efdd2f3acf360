"""How close the job comes to its floor, with a device that is held without using the CPU, beside two peers.

The floor, job and wall are defined in the docstring of the harness's compare.py. "Memory touched before" is as in
cost.py.
"""

from __future__ import annotations

import argparse
import sys

from tests.bench.measure import Figure, conclude, print_machine
from tests.bench.peers import compare

PEERS = ("curl", "threads-lock", "threads-lock-readinto")
MOST_JOB, MOST_WALL = 1.10, 1.40  # of the floor


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="blobs (default: %(default)s)")
    parser.add_argument("--size-mb", type=float, default=600, help="of each (default: %(default)s)")
    parser.add_argument("--device-ms", type=float, default=250, help="per blob (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--timeout-s", type=float, default=900, help="(default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    print_machine()
    options = ["--count", str(args.count), "--size-mb", str(args.size_mb)]
    options += ["--rounds", str(args.rounds), "--device-ms", str(args.device_ms)]
    stage = {"processor": "tests.bench.peer_processor:PeerStage", "processor_args": {"device_ms": args.device_ms}}
    rows = compare(PEERS, options=options, timeout_s=args.timeout_s, **stage)
    landings = round(3 * args.size_mb * 10**6)
    touched = compare(["curl"], options=options, timeout_s=args.timeout_s, touched_bytes=landings, **stage)
    return conclude(
        [
            Figure("job, of the floor", rows["ours"]["job_ratio"], MOST_JOB, ""),
            Figure("wall, of the floor", rows["ours"]["wall_ratio"], MOST_WALL, ""),
            Figure("job, of the floor, memory touched before", touched["ours"]["job_ratio"], MOST_JOB, ""),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
