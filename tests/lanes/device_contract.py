"""What holds of a Device on any kind of device; the tests of each kind inherit it."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from lanes.scripted import content, loaded, seen

from app.errors import ItemError, Kind, UsageError
from app.items import Item
from app.lanes.arena import Memory
from app.lanes.device import Device
from app.lanes.steps import Begin, Done, Failed, Finish, Process, Step, Update
from app.results import Array

DEADLINE_S = 60.0  # the first import of torch is within


def item(name: str) -> Item:
    return Item(name, f"test://{name}")


def process(name: str, data: bytes = b"blob", memory: Memory | None = None) -> Process:
    memory = memory if memory is not None else Memory(1 << 16, touched=1 << 16)
    memory.view(len(data))[:] = data
    return Process(item(name), memory.view(len(data)), memory)


def update(name: str, data: bytes, offset: int) -> Update:
    memory = Memory(1 << 16, touched=1 << 16)
    memory.view(len(data))[:] = data
    return Update(item(name), memory.view(len(data)), offset, memory)


def value(result: Done | Failed) -> Any:
    assert isinstance(result, Done), result
    return result.value


def failure(result: Done | Failed) -> Any:
    assert isinstance(result, Failed)
    return result.failure


class DeviceContract:
    """`device_name` and `needs_torch` are what differs."""

    device_name: ClassVar[str]
    needs_torch: ClassVar[bool] = True
    torch_device: ClassVar[str] = "cpu"

    @asynccontextmanager
    async def opened(self, processor: Any, **flags: Any) -> AsyncIterator[Device]:
        streams = flags.pop("streams", False)
        found = loaded(processor, streams=streams, needs_torch=self.needs_torch)
        device = Device(self.device_name, found, torch_threads=1, **flags)
        async with asyncio.timeout(DEADLINE_S):
            await device.open()
            try:
                yield device
            finally:
                await device.close()

    async def result(self, processor: Callable[[Any, Item], Any], data: bytes = b"blob") -> Any:
        async with self.opened(processor) as device:
            [result] = await device.call([process("x", data)])
            return result

    async def test_a_whole_blob_comes_as_it_is(self) -> None:
        data = content(50_000)
        assert value(await self.result(lambda blob, _: [len(blob), seen(blob)], data)) == [50_000, data]

    async def test_an_empty_blob_comes_as_an_empty_one(self) -> None:
        assert value(await self.result(lambda blob, _: [len(blob), seen(blob)], b"")) == [0, b""]

    async def test_calls_never_overlap_even_where_the_wait_for_one_is_cancelled(self) -> None:
        inside, released, log = threading.Event(), threading.Event(), []

        def slow(_: Any, item: Item) -> None:
            log.append(f"{item.id} begins")
            if item.id == "first":
                inside.set()
                assert released.wait(DEADLINE_S)
            log.append(f"{item.id} ends")

        async with self.opened(slow) as device:
            first = device.call([process("first")])
            await asyncio.to_thread(inside.wait, DEADLINE_S)
            first.cancel()
            second, third = device.call([process("second")]), device.call([process("third")])
            await asyncio.wait([first])
            assert log == ["first begins"]
            released.set()
            await asyncio.gather(second, third)
        assert log == [f"{name} {what}" for name in ("first", "second", "third") for what in ("begins", "ends")]

    async def test_everything_of_a_processor_is_called_on_one_thread(self) -> None:
        threads = set()

        class Noting:
            def open(self, _: Any) -> None:
                threads.add(threading.get_ident())

            def process(self, *_: Any) -> None:
                threads.add(threading.get_ident())

            def close(self) -> None:
                threads.add(threading.get_ident())

        async with self.opened(Noting()) as device:
            await device.call([process("a")])
            await device.call([process("b")])
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    async def test_steps_run_in_order_with_one_result_each(self) -> None:
        log: list[Any] = []

        class Stream:
            def begin(self, item: Item) -> None:
                log.append(item.id)

            def update(self, window: Any, offset: int) -> None:
                log.append((offset, seen(window)))

            def finish(self, item: Item) -> str:
                return f"{item.id} is whole"

        steps: list[Step] = []
        for name in ("a", "b"):
            steps += [Begin(item(name)), update(name, b"one", 0), update(name, b"two", 3), Finish(item(name))]
        async with self.opened(Stream(), streams=True) as device:
            results = await device.call(steps)
        assert [value(result) for result in results] == [None, None, None, "a is whole", None, None, None, "b is whole"]
        assert log == ["a", (0, b"one"), (3, b"two"), "b", (0, b"one"), (3, b"two")]
        assert steps == []

    async def test_a_failing_step_fails_its_item_alone_and_the_rest_of_that_is_not_run(self) -> None:
        log: list[str] = []

        class Stream:
            def begin(self, item: Item) -> None:
                log.append(f"begin {item.id}")

            def update(self, window: Any, offset: int) -> None:
                log.append(f"update {seen(window).decode()} {offset}")
                if seen(window) == b"bad":
                    raise ValueError("what a window")

            def finish(self, item: Item) -> None:
                log.append(f"finish {item.id}")

        steps = [Begin(item("a")), update("a", b"bad", 0), Begin(item("b")), update("a", b"good", 3), Finish(item("a"))]
        async with self.opened(Stream(), streams=True) as device:
            results = await device.call([*steps, Finish(item("b"))])
        assert [isinstance(result, Failed) for result in results] == [False, True, False, True, True, False]
        assert log == ["begin a", "update bad 0", "begin b", "finish b"]

    async def test_steps_that_are_not_run_take_no_time(self) -> None:
        ticks = iter(range(1000))

        class Stream:
            def begin(self, _: Item) -> None:
                raise ValueError

        steps: list[Step] = [Begin(item("a")), update("a", b"x", 0), Finish(item("a"))]
        async with self.opened(Stream(), streams=True, clock=lambda: float(next(ticks))) as device:
            results = await device.call(steps)
        assert [result.ended_at_s - result.began_at_s for result in results] == [1.0, 0.0, 0.0]

    async def test_an_error_keeps_nothing_alive_that_its_frames_held(self) -> None:
        class Big:
            pass

        alive = []

        def fails(blob: Any, item: Item) -> None:  # noqa: ARG001
            big = Big()
            alive.append(weakref.ref(big))
            raise ValueError("no")

        memory = Memory(1 << 16, touched=1 << 16)
        async with self.opened(fails) as device:
            [result] = await device.call([process("x", b"blob", memory)])
            assert failure(result).message == "ValueError: no"
            assert alive[0]() is None
            assert not memory.held()

    async def test_a_failure_tells_where_it_came_from(self) -> None:
        def deep_inside() -> None:
            raise KeyError("missing")

        said = failure(await self.result(lambda *_: deep_inside()))
        assert said.kind is Kind.PROCESSOR
        assert said.message == "KeyError: 'missing'"
        assert "in deep_inside" in said.traceback
        assert said.traceback.endswith("KeyError: 'missing'\n")

    async def test_of_a_traceback_without_end_the_end_is_kept(self) -> None:
        def fails(*_: Any) -> None:
            raise ValueError("x" * 100_000 + " the end")

        said = failure(await self.result(fails))
        assert len(said.traceback) == 16_000
        assert said.traceback.endswith("the end\n")

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()])
    async def test_whatever_is_raised_fails_the_item_and_the_next_one_is_done(self, error: BaseException) -> None:
        def fails_once(_: Any, item: Item) -> str:
            if item.id == "bad":
                raise error
            return "good"

        async with self.opened(fails_once) as device:
            bad, good = await device.call([process("bad"), process("good")])
        assert failure(bad).kind is Kind.PROCESSOR
        assert failure(bad).message.startswith(type(error).__name__)
        assert value(good) == "good"

    async def test_a_processor_names_the_kind_by_an_item_error(self) -> None:
        def fails(*_: Any) -> None:
            raise ItemError(Kind.DECODE, "no such format")

        said = failure(await self.result(fails))
        assert (said.kind, said.message) == (Kind.DECODE, "no such format")
        assert "in fails" in said.traceback

    async def test_out_of_memory_is_tried_once_more(self) -> None:
        calls: list[str] = []

        def fails_at_first(_: Any, item: Item) -> int:
            calls.append(item.id)
            if len(calls) == 1:
                raise MemoryError
            return len(calls)

        assert value(await self.result(fails_at_first)) == 2

    async def test_out_of_memory_twice_fails_the_item_alone(self) -> None:
        calls: list[str] = []

        def fails(_: Any, item: Item) -> None:
            calls.append(item.id)
            if item.id == "big":
                raise MemoryError("too big")

        async with self.opened(fails) as device:
            big, small = await device.call([process("big"), process("small")])
        assert failure(big).kind is Kind.OUT_OF_MEMORY
        assert value(small) is None
        assert calls == ["big", "big", "small"]

    async def test_results_do_not_change_when_the_blobs_memory_is_used_again(self) -> None:
        memory = Memory(1 << 16, touched=1 << 16)
        async with self.opened(lambda blob, _: {"all": blob, "some": [blob[2:4]]}) as device:
            [result] = await device.call([process("x", b"before", memory)])
            memory.view(6)[:] = b"behind"
            assert not memory.held()
        kept = value(result)
        arrays = [bytes(part.data) if isinstance(part, Array) else part for part in (kept["all"], kept["some"][0])]
        assert arrays == [b"before", b"fo"]

    async def test_a_result_that_cannot_be_kept_fails_the_item(self) -> None:
        def cycle(*_: Any) -> list[Any]:
            result: list[Any] = []
            result.append(result)
            return result

        said = failure(await self.result(cycle))
        assert said.kind is Kind.PROCESSOR
        assert "nested more than 100 deep" in said.message

    async def test_a_processor_that_cannot_be_opened_is_the_operators_to_mend(self) -> None:
        class Broken:
            def __init__(self, error: BaseException) -> None:
                self.error = error

            def open(self, _: Any) -> None:
                raise self.error

            def process(self, *_: Any) -> None: ...

        for error in (FileNotFoundError("weights.pt"), SystemExit(1)):
            with pytest.raises(UsageError, match=rf"'test:it' cannot be opened on {self.device_name}: .*{error}"):
                async with self.opened(Broken(error)):
                    pass
        with pytest.raises(UsageError, match=r"^say which$"):
            async with self.opened(Broken(UsageError("say which"))):
                pass

    async def test_a_processor_that_cannot_be_closed_is_said_and_no_more(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Unclosable:
            def process(self, *_: Any) -> str:
                return "done"

            def close(self) -> None:
                raise OSError("no space")

        with caplog.at_level(logging.WARNING):
            async with self.opened(Unclosable()) as device:
                [result] = await device.call([process("x")])
        assert value(result) == "done"
        assert f"processor 'test:it' could not be closed on {self.device_name}: OSError: no space" in caplog.text

    async def test_open_is_told_the_device(self) -> None:
        told: list[Any] = []

        class Told:
            def open(self, device: Any) -> None:
                told.append(device)

            def process(self, *_: Any) -> None: ...

        async with self.opened(Told()):
            pass
        assert told[0].name == self.device_name
        assert str(told[0].torch_device) == ("None" if self.torch_device == "cpu" else self.torch_device)
