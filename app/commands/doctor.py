"""`doctor`: what a run needs of this machine, what is wrong with it, and how to mend that."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import shutil
import ssl
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from app import __version__
from app.commands.origin import Origin, generate
from app.errors import ItemError, UsageError
from app.folder import is_remote
from app.items import Item, Part, format_binary, format_size
from app.lanes.arena import Memory
from app.lanes.budgets import machine_bytes, plan_lane
from app.lanes.device import Device
from app.lanes.gpus import describe_gpu, find_devices, has_gpu_nodes
from app.lanes.steps import Landing
from app.processors import load
from app.settings import Settings
from app.sources import StartOver, TryAgain
from app.sources.http import HttpSource, tls_context

FLOORS = {"aiohttp": (3, 14, 4), "torch": (2, 8), "safetensors": (0, 8), "pydantic": (2, 9), "rich": (13, 9)}
_FILES_BESIDE = 64  # open files beside connections: the ledger, libraries, artifacts
_LEAST_DISK_BYTES = 1_000_000_000
_COPY_BYTES, _COPIES = 64 << 20, 8
_PROBE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["ok", "warn", "wrong"]
    subject: str
    said: str
    mend: str = ""


def doctor(settings: Settings, say: Callable[[str], None]) -> int:
    """Look at this machine for a run with these settings; 0, or 1 where something is wrong."""
    findings = [*check_versions(), check_loop()]
    for finding in findings:
        say(describe(finding))
    devices, found = _devices(settings.devices)
    later: list[Callable[[], Sequence[Finding]]] = [
        lambda: found,
        lambda: [copy for name in devices if name.startswith("cuda") for copy in [asyncio.run(_copy(name))]],
        lambda: [check_memory(settings, devices, machine_bytes())],
        lambda: [check_files(settings.connections * len(devices), *resource.getrlimit(resource.RLIMIT_NOFILE))],
        lambda: [check_certificates(settings.ca_file)],
        lambda: [asyncio.run(check_receiving())],
        lambda: [check_output(Path(settings.output))],
    ]
    for check in later:
        for finding in check():
            say(describe(finding))
            findings.append(finding)
    wrong = sum(finding.level == "wrong" for finding in findings)
    say(f"{wrong} wrong" if wrong else "nothing is wrong")
    return 1 if wrong else 0


def describe(finding: Finding) -> str:
    """The finding in one line, and how to mend it in another."""
    line = f"{finding.level:<6} {finding.subject:<12} {finding.said}"
    return f"{line}\n{'':<20}mend: {finding.mend}" if finding.mend else line


def check_versions() -> list[Finding]:
    """Python and the libraries that matter, against the oldest that do."""
    findings = [Finding("ok", "python", sys.version.split()[0]), Finding("ok", "gpufeed", __version__)]
    for name, floor in FLOORS.items():
        try:
            findings.append(judge_version(name, version(name), floor))
        except PackageNotFoundError:
            findings.append(Finding("wrong", name, "is not installed", f"pip install {name}"))
    return findings


def judge_version(name: str, found: str, floor: tuple[int, ...]) -> Finding:
    numbers = tuple(int(number) for number in re.findall(r"\d+", found.partition("+")[0])[: len(floor)])
    if numbers < floor:
        least = ".".join(map(str, floor))
        return Finding("wrong", name, f"{found} is older than {least}", f"pip install '{name}>={least}'")
    return Finding("ok", name, found)


def check_loop() -> Finding:
    try:
        return Finding("ok", "loop", f"uvloop {version('uvloop')}")
    except PackageNotFoundError:
        return Finding("warn", "loop", "asyncio; uvloop takes less CPU for each byte", "pip install uvloop")


def _devices(spec: str) -> tuple[tuple[str, ...], list[Finding]]:
    try:
        names = find_devices(spec)
    except UsageError as error:
        return ("cpu",), [Finding("wrong", "devices", str(error), "name one of these in --devices")]
    gpus = [name for name in names if name.startswith("cuda")]
    if not gpus:
        return names, [judge_no_gpu(names, has_gpu_nodes())]
    return names, [Finding("ok", name, describe_gpu(name)) for name in gpus]


def judge_no_gpu(names: Sequence[str], there: bool) -> Finding:
    if there:
        said = "a GPU is in this machine, and torch does not see it"
        return Finding("wrong", "devices", said, "install a CUDA build of torch that fits the driver (nvidia-smi)")
    return Finding("ok", "devices", f"no GPU is found; items are processed on {', '.join(names)}")


async def _copy(name: str) -> Finding:
    """How fast pinned memory is copied to this GPU, by the calls that a lane makes."""
    device = Device(name, load("none", {}, Path.cwd()), torch_threads=1)
    memory, landing = Memory(_COPY_BYTES, touched=_COPY_BYTES), Landing(_COPY_BYTES)
    try:
        await device.open()
        free_bytes = await device.free_bytes()
        await device.land(landing, memory.view(_COPY_BYTES), 0, memory)  # pins and allocates
        copies = [await device.land(landing, memory.view(_COPY_BYTES), 0, memory) for _ in range(_COPIES)]
        await device.close()
    except Exception as error:  # whatever a driver may raise is what is wrong
        return Finding("wrong", name, f"{type(error).__name__}: {error}", "see nvidia-smi and the driver's log")
    per_s = _COPIES * _COPY_BYTES / max(1e-9, sum(copied.ended_at_s - copied.began_at_s for copied in copies))
    return Finding("ok", name, f"{format_size(free_bytes)} free; pinned memory is copied at {per_s / 1e9:.1f} GB/s")


def check_memory(settings: Settings, devices: Sequence[str], allowed_bytes: int) -> Finding:
    """Whether the host buffer that follows from this memory is enough."""
    said = f"{format_size(allowed_bytes)} for this process"
    try:
        plan_lane(settings, load("none", {}, Path.cwd()), devices[0], len(devices), allowed_bytes)
    except UsageError as error:
        return Finding("wrong", "memory", f"{said}: {error}", "set what the line before names, or give it more memory")
    host_bytes = settings.host_buffer if settings.host_buffer is not None else allowed_bytes // 4
    if host_bytes > allowed_bytes * 3 // 4:
        more = f"--host-buffer {format_binary(host_bytes)} is more than three quarters of {said}"
        return Finding("warn", "memory", more, "lower --host-buffer")
    shared = f", shared by {len(devices)} lanes" if len(devices) > 1 else ""
    return Finding("ok", "memory", f"{said}; host buffer {format_size(host_bytes)}{shared}")


def check_files(connections: int, soft: int, hard: int) -> Finding:
    """Whether so many connections, and a local file read on each, fit the limit of open files."""
    needed = 2 * connections + _FILES_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Finding("ok", "open files", f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} allowed")
    said = f"{soft} allowed; {connections} connections may need {needed}"
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return Finding("wrong", "open files", said, f"ulimit -n {needed}")
    return Finding("wrong", "open files", said, f"ulimit -n {hard} is the most here; fewer --connections, or ask root")


def check_certificates(ca_file: str | None) -> Finding:
    """Whether there is any certificate to verify https:// with."""
    try:
        context = tls_context(ca_file)
    except UsageError as error:
        return Finding("wrong", "certificates", str(error), "name a PEM file of certificates in --ca-file")
    count = context.cert_store_stats()["x509_ca"]
    folder = ssl.get_default_verify_paths().capath
    if count:
        return Finding("ok", "certificates", f"{count} from {ca_file or 'the system'}")
    if folder is not None and any(Path(folder).glob("*")):
        return Finding("ok", "certificates", f"from {folder}")
    return Finding("warn", "certificates", "none: https:// fails", "apt install ca-certificates, or give --ca-file")


class _Probe:
    """Memory that a body is received into."""

    def __init__(self, length: int) -> None:
        self._view = memoryview(bytearray(length))
        self.filled = 0

    def view(self) -> memoryview | None:
        return self._view[self.filled :] if self.filled < len(self._view) else None

    def advance(self, count: int) -> None:
        self.filled += count

    async def wait(self) -> None:
        raise AssertionError("there is room for the whole body")


class _Warnings(logging.Handler):
    """Keeps what the receiving room has to say."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


async def check_receiving() -> Finding:
    """Whether a body from the loopback interface arrives, and in place."""
    warnings, log, probe = _Warnings(), logging.getLogger("gpufeed.receive"), _Probe(_PROBE_BYTES)
    log.addHandler(warnings)
    try:
        with Origin({"probe": generate(_PROBE_BYTES, 8, 0)}) as origin:
            async with HttpSource(connect_timeout_s=5, stall_timeout_s=5) as source:
                reply = await source.ask(Item("probe", origin.url("probe")), Part(0, _PROBE_BYTES), None)
                await reply.receive(probe)
    except (ItemError, TryAgain, StartOver, OSError) as error:
        return Finding("wrong", "receiving", f"over the loopback interface: {error}", "look at firewall rules for lo")
    finally:
        log.removeHandler(warnings)
    if warnings.said:
        return Finding("warn", "receiving", warnings.said[0], "install the aiohttp that pyproject.toml names")
    return Finding("ok", "receiving", f"in place, {format_size(probe.filled)} over the loopback interface")


def check_output(output: Path) -> Finding:
    """Whether the output folder can be written to, and has room."""
    folder = next(place for place in (output.absolute(), *output.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        said = f"{folder} cannot be written to: {error.strerror}"
        return Finding("wrong", "output", said, "give another --output, or mend its permissions")
    free_bytes = shutil.disk_usage(folder).free
    said = f"{output} can be written to, {format_size(free_bytes)} free"
    if free_bytes < _LEAST_DISK_BYTES:
        return Finding("warn", "output", said, "make room, or give another --output")
    if is_remote(folder):
        return Finding("warn", "output", f"{said}, on a network file system: commits are slower", "a local --output")
    return Finding("ok", "output", said)
