"""Fetch blobs that all differ with the processor `digest`, and compare every sha256 with the origin's files."""

from __future__ import annotations

import argparse
import sys

from tests.bench.measure import MB, Figure, conclude, gpufeed, print_machine, results, scratch, succeed
from tests.bench.origins import Origin


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12, help="blobs (default: %(default)s)")
    parser.add_argument("--size-mb", type=float, default=600, help="of each (default: %(default)s)")
    parser.add_argument("--timeout-s", type=float, default=180, help="(default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    print_machine()
    size = round(args.size_mb * MB)
    with scratch() as folder, Origin(args.count, size, distinct=args.count) as origin:
        manifest, output = origin.write_manifest(folder / "manifest.jsonl"), folder / "out"
        took = succeed(gpufeed(manifest, output, processor="digest"), timeout_s=args.timeout_s)
        lines, wanted = results(output), origin.sha256s()
    right = sum((line["result"] or {}).get("sha256") == wanted[line["id"]] for line in lines)
    total_gb = args.count * size / 1e9
    print(f"{total_gb:.2f} GB in {took.wall_s:.1f} s: {total_gb / took.wall_s:.2f} GB/s, CPU {took.cpu_s:.1f} s")
    return conclude(
        [
            Figure("digests that are right", right, args.count, "", at_least=True),
            Figure("outcomes", len(lines), args.count, ""),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
