"""What a lane makes of items of every kind, and how much memory it takes."""

from __future__ import annotations

from typing import Any

import pytest
from lanes.lane_setting import LaneSetting, both
from lanes.scripted import (
    WINDOW,
    content,
    seen,
    sha256,
)

from app.errors import Kind
from app.items import Item

SIZES = (0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 4 * WINDOW, 13 * WINDOW + 7)


class OfItems(LaneSetting):
    # Every item, one outcome:

    @both
    @pytest.mark.parametrize("known", [True, False], ids=["size in the manifest", "size unknown"])
    @pytest.mark.parametrize(("sized", "ranges"), [(True, True), (True, False), (False, False)])
    async def test_every_item_is_processed_whatever_its_source_says(
        self, streams: bool, known: bool, sized: bool, ranges: bool
    ) -> None:
        items = [
            self.source.add(f"{size}", content(size, size), known=known, sized=sized, ranges=ranges) for size in SIZES
        ]
        feed = await self.run(items, streams=streams)
        assert feed.results() == self.digests(items)
        assert {name: outcome.bytes for name, outcome in feed.by_id().items()} == {f"{size}": size for size in SIZES}
        assert {outcome.attempts for outcome in feed.outcomes} == {1}
        assert {outcome.device for outcome in feed.outcomes} == {self.device_name}

    @both
    async def test_kinds_of_sources_may_be_mixed(self, streams: bool) -> None:
        items = [
            self.source.add(
                f"{index}", content(3000 * (index % 5), index), known=index % 2 == 0,
                sized=index % 3 > 0, ranges=index % 3 == 2,
            )
            for index in range(30)
        ]  # fmt: skip
        feed = await self.run(items, streams=streams)
        assert feed.results() == self.digests(items)

    @both
    @pytest.mark.parametrize("connections", [1, 2, 32])
    async def test_any_number_of_connections_gets_through(self, streams: bool, connections: int) -> None:
        items = [self.source.add(f"{index}", content(9000, index)) for index in range(6)]
        feed = await self.run(items, streams=streams, connections=connections, budget=20 * WINDOW)
        assert feed.results() == self.digests(items)

    async def test_as_few_slabs_as_one_carry_a_stream(self) -> None:
        items = [self.source.add(f"{index}", content(9000, index)) for index in range(3)]
        feed = await self.run(items, streams=True, budget=WINDOW)
        assert feed.results() == self.digests(items)

    @both
    async def test_many_small_items_are_processed(self, streams: bool) -> None:
        items = [self.source.add(f"{index}", content(index % 50, index)) for index in range(1500)]
        feed = await self.run(items, streams=streams)
        assert feed.results() == self.digests(items)

    async def test_no_items_at_all_end_the_lane(self) -> None:
        assert (await self.run([])).outcomes == []

    async def test_tensors_and_bytes_of_a_result_are_on_disk_when_it_is_reported(self) -> None:
        items = [self.source.add(f"{index}", content(2000, index)) for index in range(3)]
        feed = await self.run(items, lambda blob, _: {"copy": seen(blob), "n": len(blob)})
        for item in items:
            [artifact] = feed.by_id()[item.id].artifacts
            assert (self.output / artifact).read_bytes() == self.source.blob(item).data

    # Memory:

    async def test_an_item_that_can_never_fit_fails_at_once_with_both_figures_and_the_setting(self) -> None:
        big = self.source.add("big", content(9 * WINDOW))
        told = self.source.add("told", content(9 * WINDOW), known=True)
        small = self.source.add("small", content(WINDOW))
        feed = await self.run([big, told, small], budget=8 * WINDOW)
        setting = "--device-buffer" if self.device_name.startswith("cuda") else "--host-buffer"
        for name in ("big", "told"):
            kind, message = feed.failures()[name]
            assert kind is Kind.TOO_LARGE
            assert f"{name}: its {9 * WINDOW} bytes do not fit in a landing of at most {8 * WINDOW} bytes" in message
            assert f"raise {setting}" in message
        assert self.source.blob(told).asked == []
        assert feed.results()["small"] is not None

    async def test_streams_are_never_too_large(self) -> None:
        items = [self.source.add("big", content(200 * WINDOW))]
        assert (await self.run(items, streams=True, budget=8 * WINDOW)).results() == self.digests(items)

    @pytest.mark.parametrize("known", [True, False])
    async def test_items_with_room_for_one_take_turns(self, known: bool) -> None:
        items = [self.source.add(f"{index}", content(6 * WINDOW, index), known=known) for index in range(5)]
        feed = await self.run(items, budget=8 * WINDOW)
        assert feed.results() == self.digests(items)

    async def test_items_of_unknown_length_grow_within_the_budget(self) -> None:
        items = [
            self.source.add(f"{index}", content(6 * WINDOW, index), sized=index % 2 == 0, ranges=index % 2 == 0)
            for index in range(6)
        ]
        feed = await self.run(items, budget=8 * WINDOW)
        assert feed.results() == self.digests(items)

    async def test_an_item_of_unknown_length_beyond_the_budget_fails_as_too_large(self) -> None:
        small = [self.source.add(f"{index}", content(3 * WINDOW, index)) for index in range(3)]
        big = self.source.add("big", content(9 * WINDOW), sized=False, ranges=False)
        feed = await self.run([*small[:2], big, small[2]], budget=8 * WINDOW)
        kind, message = feed.failures()["big"]
        assert kind is Kind.TOO_LARGE
        assert "big: it is of unknown length" in message
        assert f"{9 * WINDOW} bytes" in message
        assert f"at most {8 * WINDOW} bytes" in message
        assert {name: feed.results()[name] for name in ("0", "1", "2")} == self.digests(small)

    async def test_a_processor_that_holds_on_to_blobs_gets_new_memory_and_a_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        held: list[Any] = []

        def hold(blob: Any, _: Item) -> str:
            held.append(blob)
            return sha256(seen(blob))

        items = [self.source.add(f"{index}", content(3000, index)) for index in range(6)]
        feed = await self.run(items, hold, budget=8 * WINDOW)
        assert feed.results() == self.digests(items)
        assert [sha256(seen(blob)) for blob in held] == [feed.results()[item.id] for item in items]
        if not self.device_name.startswith("cuda"):
            assert caplog.text.count("is still referred to") == 6

    async def test_landings_are_used_again(self, caplog: pytest.LogCaptureFixture) -> None:
        items = [self.source.add(f"{index}", content(3000, index)) for index in range(200)]
        feed = await self.run(items)
        assert feed.results() == self.digests(items)
        assert "is still referred to" not in caplog.text
