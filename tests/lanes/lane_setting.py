"""A lane as the contracts set it up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from lanes.scripted import (
    Hashing,
    RecordingFeed,
    ScriptedSource,
    loaded,
    make_lane,
    plan,
    run_lane,
    sha256,
)

from app.items import Item
from app.lanes.device import Device
from app.lanes.lane import Lane


def both(test: Any) -> Any:
    return pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])(test)


class LaneSetting:
    """`device_name` is what differs."""

    device_name: ClassVar[str]
    needs_torch: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _output(self, tmp_path: Path) -> None:
        self.output = tmp_path
        self.source = ScriptedSource()

    def lane(
        self,
        items: Sequence[Item],
        processor: Any = None,
        *,
        streams: bool = False,
        attempts: int = 3,
        feed: RecordingFeed | None = None,
        **changed: Any,
    ) -> tuple[Lane, RecordingFeed]:
        found = loaded(processor or Hashing(), streams=streams, needs_torch=self.needs_torch)
        device = Device(self.device_name, found, torch_threads=1)
        made = plan(streams=streams, lands_here=device.is_cuda and not streams, **changed)
        feed = feed or RecordingFeed(items)
        return make_lane(made, device, feed, self.source, self.output, attempts=attempts), feed

    async def run(self, items: Sequence[Item], processor: Any = None, **flags: Any) -> RecordingFeed:
        lane, feed = self.lane(items, processor, **flags)
        await run_lane(lane)
        assert sorted(feed.by_id()) == sorted(item.id for item in items)
        assert feed.given_back == []
        return feed

    def digests(self, items: Sequence[Item]) -> dict[str, str]:
        return {item.id: sha256(self.source.blob(item).data) for item in items}


class Counting(list[Any]):
    """A blob's `asked`, which acts on how many requests there have been."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self._act = act

    def append(self, part: Any) -> None:
        super().append(part)
        self._act(len(self))
