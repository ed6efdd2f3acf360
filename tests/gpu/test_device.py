"""The device contract on a GPU, and what only a GPU has: landings, pinned memory, kernels that outlive their call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lanes.device_contract import failure, process, value
from lanes.scripted import Hold, content, loaded
from lanes.torch_contract import TorchContract

from app.errors import ItemError, Kind
from app.items import Item
from app.lanes.arena import Memory
from app.lanes.device import Device
from app.lanes.faults import poisons
from app.lanes.steps import Landing, Process

ITEM = Item("x", "test://x")
MIB = 1 << 20


class TestOnTheGpu(TorchContract):
    device_name = "cuda:0"
    torch_device = "cuda:0"

    async def landed(self, device: Device, data: bytes, window: int) -> Landing:
        """The data, landed window by window, last one first."""
        landing = Landing(len(data))
        for offset in reversed(range(0, len(data), window)):
            memory = Memory(window, touched=window)
            piece = data[offset : offset + window]
            memory.view(len(piece))[:] = piece
            copied = await device.land(landing, memory.view(len(piece)), offset, memory)
            assert copied.ended_at_s >= copied.began_at_s
        return landing

    async def test_windows_land_at_their_offsets_in_any_order(self) -> None:
        data = content(5 * MIB + 7)
        async with self.opened(lambda blob, _: blob) as device:
            landing = await self.landed(device, data, MIB)
            assert str(landing.tensor.device) == "cuda:0"
            [result] = await device.call([Process(ITEM, landing.tensor, None)])
        assert bytes(value(result).data) == data

    async def test_an_item_without_a_byte_is_an_empty_tensor_on_the_gpu(self) -> None:
        async with self.opened(lambda blob, _: [list(blob.shape), str(blob.device)]) as device:
            [result] = await device.call([Process(ITEM, Landing(0).tensor, None)])
        assert value(result) == [[0], "cuda:0"]

    async def test_items_land_while_a_processor_holds_the_device(self) -> None:
        hold = Hold()
        async with self.opened(lambda *_: hold.wait()) as device:
            with hold:
                call = device.call([process("slow")])
                await hold.reached()
                landing = await self.landed(device, content(2 * MIB), MIB)
                assert landing.tensor is not None
                assert not call.done()
            await call

    async def test_a_landing_too_large_for_the_gpu_is_out_of_memory_and_costs_only_its_item(self) -> None:
        memory = Memory(1 << 16, touched=1 << 16)
        async with self.opened(lambda blob, _: len(blob)) as device:
            with pytest.raises(ItemError) as raised:
                await device.land(Landing(1 << 50), memory.view(10), 0, memory)
            assert raised.value.kind is Kind.OUT_OF_MEMORY
            [result] = await device.call([process("x")])
        assert value(result) == 4

    async def test_memory_is_pinned_as_far_as_it_is_touched_and_let_go_of_with_it(self) -> None:
        def look(blob: Any, _: Item) -> bool:
            return bool(blob.is_pinned())

        found = loaded(look, needs_torch=True, lands_on="host")
        device = Device("cuda:0", found, torch_threads=1)
        async with asyncio.timeout(60):
            await device.open()
            for _ in range(20):  # the same addresses come again
                memory = Memory(4 * MIB)
                for touched in (MIB, 3 * MIB):
                    memory.touched = touched
                    [result] = await device.call([Process(ITEM, memory.view(touched), memory)])
                    assert value(result) is True
                    assert memory.pinned == touched
                del memory, result
            await device.close()

    async def test_a_failed_step_has_left_the_gpu_idle(self) -> None:
        import torch

        def fails(*_: Any) -> None:
            torch.cuda._sleep(500_000_000)
            raise ValueError("while kernels run")

        async with self.opened(fails) as device:
            [result] = await device.call([process("x")])
            assert failure(result).message == "ValueError: while kernels run"
            assert device._stream.query()

    async def test_free_memory_is_known(self) -> None:
        async with self.opened(lambda *_: None) as device:
            assert await device.free_bytes() > 0


def test_an_ordinary_error_does_not_poison() -> None:
    import torch

    with pytest.raises(RuntimeError) as raised:
        torch.zeros(3, device="cuda:0") + torch.zeros(4, device="cuda:0")
    assert not poisons(raised.value)
