"""A real nginx on the loopback that serves blobs from memory, and ends with whatever started it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

MEMORY = Path("/dev/shm")
_PREFIX = "gpufeed-origin-"
_BLOCK_BYTES = 4 << 20
_STAMP_BYTES = 32
_PR_SET_PDEATHSIG = 1

_CONFIG = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
    log_format bench '$msec $request_time $body_bytes_sent';
    access_log {folder}/access.log bench;
    client_body_temp_path {folder}/tmp;
    proxy_temp_path {folder}/tmp;
    fastcgi_temp_path {folder}/tmp;
    uwsgi_temp_path {folder}/tmp;
    scgi_temp_path {folder}/tmp;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 100000;
    default_type application/octet-stream;
    limit_rate {rate};
    server {{ listen 127.0.0.1:{port}; root {folder}/blobs; }}
}}
"""


class Origin:
    """Serves `count` blobs of `size` bytes, of which `distinct` differ; limited to `rate` bytes/s per request."""

    def __init__(self, count: int, size: int, *, distinct: int = 4, rate: int = 0, sparse: bool = False) -> None:
        self.count = count
        self.size = size
        self.distinct = min(distinct, count)
        self.rate = rate
        self._sparse = sparse
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        _sweep()
        with contextlib.ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=MEMORY))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.folder.chmod(0o755)  # nginx's worker may be another user
            self._write_blobs()
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def path(self, index: int) -> Path:
        return self.folder / "blobs" / f"{index:06d}.bin"

    def write_manifest(self, path: Path) -> Path:
        """One JSON object a line: id, url, size."""
        base = f"http://127.0.0.1:{self.port}"
        rows = (
            {"id": f"{index:06d}", "url": f"{base}/{index:06d}.bin", "size": self.size} for index in range(self.count)
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def sha256s(self) -> dict[str, str]:
        """The digest of every blob by its item's id, from the files."""
        digests = []
        for index in range(self.distinct):
            with self.path(index).open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return {f"{index:06d}": digests[index % self.distinct] for index in range(self.count)}

    def first_request_at_s(self) -> float:
        """When the first request began, in seconds since the epoch; the log is started anew by `forget`."""
        rows = [line.split() for line in (self.folder / "access.log").read_text().splitlines()]
        return min(float(at_s) - float(took_s) for at_s, took_s, _ in rows)

    def forget(self) -> None:
        """Empty the log."""
        os.truncate(self.folder / "access.log", 0)

    def _write_blobs(self) -> None:
        self.path(0).parent.mkdir()
        needed = 0 if self._sparse else self.distinct * self.size
        if shutil.disk_usage(MEMORY).free < needed + (1 << 28):
            raise SystemExit(f"{MEMORY} has no room for {self.distinct} blobs of {self.size} bytes")
        for index in range(self.count):
            if index >= self.distinct:
                self.path(index).hardlink_to(self.path(index % self.distinct))
            elif self._sparse:
                self.path(index).touch()
                os.truncate(self.path(index), self.size)
            else:
                write_blob(self.path(index), index, self.size)

    def _start(self, stack: contextlib.ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = int(server.getsockname()[1])
        config, errors = self.folder / "nginx.conf", self.folder / "error.log"
        config.write_text(_CONFIG.format(folder=self.folder, port=self.port, rate=self.rate))
        argv = ["nginx", "-p", str(self.folder), "-e", str(errors), "-c", str(config)]
        try:
            process = subprocess.Popen(argv, preexec_fn=_end_with_parent, stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            raise SystemExit("nginx is not installed (Debian: nginx-light)") from None
        stack.callback(_stop, process)
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise SystemExit(f"nginx did not start: {errors.read_text() if errors.exists() else 'it left no log'}")


def write_blob(path: Path, number: int, size: int) -> None:
    """Write blob `number`: blocks of seeded random bytes, each begun with a stamp that tells blob and place.

    So no two blocks are alike, and bytes that land in a wrong place show in the digest.
    """
    block = bytearray(random.Random(number).randbytes(min(size, _BLOCK_BYTES)))
    with path.open("wb") as file:
        for start in range(0, size, _BLOCK_BYTES):
            stamp = hashlib.blake2b(f"{number}:{start}".encode(), digest_size=_STAMP_BYTES).digest()
            block[:_STAMP_BYTES] = stamp
            file.write(memoryview(block)[: size - start])


def _sweep() -> None:
    """Remove what origins left behind that were killed."""
    for folder in MEMORY.glob(f"{_PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(_PREFIX).split("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
