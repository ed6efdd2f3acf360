"""`python -m tests.bench.touched BYTES COMMAND …`: touch so much memory, free it, and become the command.

A virtual machine may have given its free memory back to its host, and whoever touches it next pays for getting it back.
What the command takes then is its own.
"""

from __future__ import annotations

import mmap
import os
import sys

PAGE_BYTES = 4096


def touch(size: int) -> None:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size, PAGE_BYTES):
        memory[at] = 1
    memory.close()


if __name__ == "__main__":
    touch(int(sys.argv[1]))
    if sys.argv[2:]:
        os.execvp(sys.argv[2], sys.argv[2:])
