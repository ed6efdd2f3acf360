"""What a lane makes of sources that break off, change and refuse."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from lanes.lane_setting import Counting, LaneSetting, both
from lanes.scripted import (
    WINDOW,
    Hashing,
    content,
    sha256,
)

from app.errors import ItemError, Kind
from app.items import Item
from app.sources import TryAgain


class OfSources(LaneSetting):
    # What sources do:

    @both
    async def test_a_broken_body_is_continued_at_its_first_missing_byte(self, streams: bool) -> None:
        broken = self.source.add("a", content(9000), breaks=[WINDOW, 2 * WINDOW, 5 * WINDOW])
        feed = await self.run([broken], streams=streams)
        assert feed.results() == self.digests([broken])
        assert feed.by_id()["a"].attempts == 4
        starts = [part.start for part in self.source.blob(broken).asked if part is not None]
        assert {0, WINDOW, 2 * WINDOW, 5 * WINDOW} <= set(starts)
        assert len(set(starts)) == len(starts)

    @both
    async def test_a_source_that_never_answers_fails_its_item_alone(self, streams: bool) -> None:
        refusals = [TryAgain(Kind.HTTP_STATUS, "503 once more") for _ in range(3)]
        bad = self.source.add("bad", content(9000), refusals=deque(refusals))
        good = self.source.add("good", content(9000))
        feed = await self.run([bad, good], streams=streams)
        assert feed.failures() == {"bad": (Kind.HTTP_STATUS, "503 once more")}
        assert feed.by_id()["bad"].attempts == 3
        assert feed.results()["good"] == sha256(content(9000))

    @both
    async def test_an_item_that_its_source_refuses_fails_alone(self, streams: bool) -> None:
        bad = self.source.add("bad", b"", refusals=deque([ItemError(Kind.NOT_FOUND, "gone")]))
        good = self.source.add("good", content(3 * WINDOW))
        feed = await self.run([bad, good], streams=streams)
        assert feed.failures() == {"bad": (Kind.NOT_FOUND, "gone")}

    @both
    async def test_an_item_that_turns_out_bad_after_its_last_byte_is_not_processed(self, streams: bool) -> None:
        late = ItemError(Kind.CHANGED, "it changed while it was read")
        bad = self.source.add("bad", content(9000), afterthought=late)
        good = self.source.add("good", content(9000))
        ended: list[str] = []

        class Noting(Hashing):
            def process(self, blob: Any, item: Item) -> str:
                ended.append(item.id)
                return super().process(blob, item)

            def finish(self, item: Item) -> str:
                ended.append(item.id)
                return super().finish(item)

        feed = await self.run([bad, good], Noting(), streams=streams)
        assert feed.failures() == {"bad": (Kind.CHANGED, "it changed while it was read")}
        assert ended == ["good"]

    @both
    async def test_a_part_that_fails_gives_up_the_others_of_its_item(self, streams: bool) -> None:
        never = asyncio.Event()
        bad = self.source.add("bad", content(20 * WINDOW), known=True, gates={4 * WINDOW: never})
        good = self.source.add("good", content(3 * WINDOW))
        blob = self.source.blob(bad)

        def fail_the_third(asked: Any) -> None:
            if asked == 3:
                blob.refusals.append(ItemError(Kind.FORBIDDEN, "no more"))

        blob.asked = Counting(fail_the_third)
        feed = await self.run([bad, good], streams=streams)
        assert feed.failures() == {"bad": (Kind.FORBIDDEN, "no more")}
        assert feed.results()["good"] == sha256(content(3 * WINDOW))

    @both
    async def test_an_item_that_changes_is_fetched_anew_as_one_version(self, streams: bool) -> None:
        item = self.source.add("a", content(20 * WINDOW, 1), strong="one")
        blob = self.source.blob(item)

        def change_at_the_third(asked: int) -> None:
            if asked == 3:
                blob.data, blob.strong = content(15 * WINDOW, 2), "two"

        blob.asked = Counting(change_at_the_third)
        feed = await self.run([item], streams=streams)
        assert feed.results() == {"a": sha256(content(15 * WINDOW, 2))}
        assert feed.by_id()["a"].attempts == 2
        assert feed.by_id()["a"].bytes == 15 * WINDOW

    @both
    async def test_an_item_that_changes_all_the_time_is_given_up(self, streams: bool) -> None:
        item = self.source.add("a", content(20 * WINDOW), strong="0")
        blob = self.source.blob(item)

        def change(asked: int) -> None:
            blob.strong = f"{asked}"

        blob.asked = Counting(change)
        good = self.source.add("good", content(20 * WINDOW))
        feed = await self.run([item, good], streams=streams)
        kind, message = feed.failures()["a"]
        assert kind is Kind.CHANGED
        assert "given up after 3 starts" in message
        assert feed.results()["good"] == sha256(content(20 * WINDOW))

    @both
    @pytest.mark.parametrize("position", [0, WINDOW])
    async def test_a_server_that_turns_to_whole_bodies_is_followed(self, streams: bool, position: int) -> None:
        item = self.source.add("a", content(20 * WINDOW), breaks=[position])
        blob = self.source.blob(item)

        def turn_at_the_second(asked: int) -> None:
            blob.ranges = asked < 2

        blob.asked = Counting(turn_at_the_second)
        feed = await self.run([item], streams=streams, connections=1)
        assert feed.results() == self.digests([item])
        assert list(blob.asked)[-1] is None

    @both
    async def test_a_body_longer_than_the_manifest_says_fails_its_item_alone(self, streams: bool) -> None:
        long = self.source.add("long", content(3 * WINDOW), sized=False, ranges=False)
        good = self.source.add("good", content(3 * WINDOW))
        feed = await self.run([Item("long", long.url, 2 * WINDOW), good], streams=streams)
        kind, message = feed.failures()["long"]
        assert kind is Kind.INTEGRITY
        assert f"more than the {2 * WINDOW} bytes" in message
        assert feed.results()["good"] == sha256(content(3 * WINDOW))

    @both
    async def test_a_size_other_than_the_manifests_fails_its_item_alone(self, streams: bool) -> None:
        item = self.source.add("a", content(3 * WINDOW))
        good = self.source.add("good", content(3 * WINDOW))
        feed = await self.run([Item("a", item.url, 2 * WINDOW), good], streams=streams)
        assert feed.failures()["a"][0] is Kind.INTEGRITY

    async def test_an_item_without_a_url_fails_as_unsupported(self) -> None:
        feed = await self.run([Item("a", None)])
        assert feed.failures()["a"][0] is Kind.UNSUPPORTED
