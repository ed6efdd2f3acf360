"""Placement `thread`: the lanes of a run live in this process, on one event loop, a device thread each."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path

from app.errors import RunError, UsageError
from app.items import Item
from app.lanes.budgets import machine_bytes, plan_lane
from app.lanes.device import Device
from app.lanes.lane import Feed, Lane, LaneSnapshot
from app.lanes.steps import DeviceLost
from app.processors import Loaded
from app.settings import Settings
from app.sources import Source
from app.sources.files import FileSource
from app.sources.http import HttpSource

_LOG = logging.getLogger("gpufeed.lanes")


class InlinePlacement:
    """The lanes of one run. A device that is lost costs its lane; the others go on."""

    def __init__(
        self, settings: Settings, loaded: Loaded, devices: tuple[str, ...], feed: Feed, http: HttpSource, output: Path
    ) -> None:
        if settings.device_buffer is not None and not any(name.startswith("cuda") for name in devices):
            raise UsageError(f"--device-buffer is about GPUs, and --devices names none: {', '.join(devices)}")
        self._http = http
        self._files = FileSource(settings.connections * len(devices))
        self._sources: dict[str, Source] = {"http": http, "https": http, "file": self._files}
        threads = max(1, len(os.sched_getaffinity(0)) // len(devices))
        memory = machine_bytes()
        self._lanes = [
            Lane(
                plan_lane(settings, loaded, name, len(devices), memory),
                Device(name, loaded, torch_threads=threads),
                feed,
                self._source,
                output,
                attempts=settings.attempts,
            )
            for name in devices
        ]

    async def run(self) -> None:
        """Work until the feed has no more items for any lane, then close the processors.

        Raises: UsageError where a processor cannot be opened; RunError when no device is left, or from the feed.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._files.close)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run_lane(lane)) for lane in self._lanes]
            lost = [error for task in tasks if (error := task.result()) is not None]
            for lane in self._lanes:
                await lane.close()
            if len(lost) == len(self._lanes):
                raise RunError(f"no device is left: {lost[-1]}") from lost[-1]

    def stop(self) -> None:
        """Take no more items; what is on a device is finished and reported."""
        for lane in self._lanes:
            lane.stop()

    def snapshot(self) -> tuple[LaneSnapshot, ...]:
        return tuple(lane.snapshot() for lane in self._lanes)

    async def _run_lane(self, lane: Lane) -> DeviceLost | None:
        try:
            await lane.run()
        except DeviceLost as error:
            _LOG.error("%s", error)
            return error
        return None

    def _source(self, item: Item) -> Source:
        scheme = (item.url or "").partition(":")[0]
        return self._sources[scheme]
