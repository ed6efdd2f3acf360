"""What holds of a Device where blobs are tensors."""

from __future__ import annotations

import weakref
from typing import Any

from lanes.device_contract import DeviceContract, failure, process, value

from app.errors import Kind
from app.items import Item
from app.results import Array


class TorchContract(DeviceContract):
    """What holds besides where blobs are tensors."""

    async def test_a_blob_is_a_flat_tensor_of_bytes_on_the_device(self) -> None:
        def look(blob: Any, _: Item) -> list[Any]:
            return [str(blob.dtype), list(blob.shape), str(blob.device), blob.is_contiguous()]

        for data in (b"blob", b""):
            expected = ["torch.uint8", [len(data)], self.torch_device, True]
            assert value(await self.result(look, data)) == expected

    async def test_user_code_runs_in_inference_mode_with_so_many_threads(self) -> None:
        import torch

        def look(*_: Any) -> list[Any]:
            return [torch.is_inference_mode_enabled(), torch.get_num_threads()]

        assert value(await self.result(look)) == [True, 1]

    async def test_tensors_anywhere_in_a_result_are_kept_with_dtype_and_shape(self) -> None:
        import torch

        where = self.torch_device
        one = torch.arange(6, dtype=torch.float32, device=where).reshape(2, 3)
        result = {
            "f32": one,
            "transposed": one.T,
            "bf16": [torch.tensor([1.0, -2.0], dtype=torch.bfloat16, device=where)],
            "bool": (torch.tensor([True, False], device=where),),
            "empty": torch.empty(0, 4, dtype=torch.int64, device=where),
            "negated": torch.tensor([1 + 2j], device=where).conj().imag,
            "number": torch.tensor(7, device=where),
            "nan": torch.tensor(float("nan"), device=where),
            "one": torch.tensor([5], device=where),
        }
        kept = value(await self.result(lambda *_: result))
        assert kept["f32"] == Array("F32", (2, 3), one.cpu().numpy().tobytes())
        assert kept["transposed"] == Array("F32", (3, 2), one.cpu().numpy().T.tobytes())
        assert kept["bf16"] == [Array("BF16", (2,), b"\x80\x3f\x00\xc0")]
        assert kept["bool"] == [Array("BOOL", (2,), b"\x01\x00")]
        assert kept["empty"] == Array("I64", (0, 4), b"")
        assert kept["negated"] == Array("F32", (1,), b"\x00\x00\x00\xc0")
        assert kept["number"] == 7
        assert kept["nan"] != kept["nan"]
        assert kept["one"] == Array("I64", (1,), b"\x05" + bytes(7))

    async def test_a_tensor_of_a_dtype_that_files_do_not_hold_fails_the_item(self) -> None:
        import torch

        said = failure(await self.result(lambda *_: torch.tensor([1j], dtype=torch.complex128)))
        assert "a tensor of torch.complex128 cannot be kept" in said.message

    async def test_torch_running_out_of_memory_is_known_as_such(self) -> None:
        import torch

        said = failure(await self.result(lambda *_: torch.empty(1 << 55, dtype=torch.uint8, device=self.torch_device)))
        assert said.kind is Kind.OUT_OF_MEMORY

    async def test_an_error_keeps_no_tensor_alive(self) -> None:
        alive = []

        def fails(blob: Any, item: Item) -> None:  # noqa: ARG001
            double = blob.float()
            alive.extend([weakref.ref(blob), weakref.ref(double)])
            raise ValueError("no")

        async with self.opened(fails) as device:
            await device.call([process("x")])
            assert [reference() for reference in alive] == [None, None]
