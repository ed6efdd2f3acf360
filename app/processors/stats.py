"""`stats`: what an item's elements are like, computed on the lane's device while they come in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from app.errors import ItemError, Kind, UsageError
from app.items import Item

if TYPE_CHECKING:
    import torch

    from app.processors import DeviceInfo
    from app.processors.bins import Grid
    from app.processors.tallies import Summary, Tally

INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Stats:
    """Count, min, max, mean, standard deviation and histogram of the item, read as an array of `dtype`, little-endian.

    The result holds `dtype` and

    - `count`: all elements; for floats also `nan` and `inf`, how many of them are that. The rest is of the finite ones,
      and null where there are none;
    - `min`, `max`: exact; `mean`, `std` (of the population): float64, and null where float64 overflows;
    - `histogram`: 256 counts, exact; `edges`: where the first bin starts and the last one ends, all bins being equally
      wide and a value on an edge belonging to the bin above. For types of one byte that is one bin a value; for others
      bins are as wide as the smallest power of two with which they reach from min to max (see `bins.py`);
    - `entropy`, for uint8: Shannon's, in bits per byte, 0 to 8.

    However the stream is cut into windows, the result is the same, but for the last digits of `mean` and `std`
    where elements have four or eight bytes. Less than 64 MiB of device memory is used beside the window.
    """

    lands_on: ClassVar[Literal["device", "host"]] = "device"
    streams: ClassVar[bool] = True
    needs_torch: ClassVar[bool] = True

    def __init__(self, dtype: str = "uint8") -> None:
        if dtype not in INTEGERS + FLOATS:
            raise UsageError(f"stats knows no dtype {dtype!r}; it knows {', '.join(INTEGERS + FLOATS)}")
        self._name = dtype
        self._dtype: torch.dtype
        self._device: torch.device
        self._grid: Grid
        self._tally: Tally
        self._rest: torch.Tensor | None = None  # [0 < n < itemsize] uint8: an element that the next window continues
        self._bytes = 0

    def open(self, device: DeviceInfo) -> None:
        import torch

        from app.processors.tallies import grid_for

        self._dtype = getattr(torch, self._name)
        self._device = device.torch_device or torch.device("cpu")
        self._grid = grid_for(self._dtype, self._device)

    def begin(self, item: Item) -> None:  # noqa: ARG002  # the protocol's
        from app.processors.tallies import tally_for

        self._tally = tally_for(self._dtype, self._device, self._grid)
        self._rest = None
        self._bytes = 0

    def update(self, window: torch.Tensor, offset: int) -> None:  # noqa: ARG002  # windows come without gaps
        self._bytes += len(window)
        if self._rest is not None:
            window = self._complete(self._rest, window)
        whole = len(window) - len(window) % self._dtype.itemsize
        tile_bytes = self._tally.tile_elements * self._dtype.itemsize
        for start in range(0, whole, tile_bytes):
            self._tally.add(self._typed(window[start : min(start + tile_bytes, whole)]))
        if whole < len(window):
            self._rest = window[whole:].clone()

    def finish(self, item: Item) -> dict[str, Any]:  # noqa: ARG002  # the protocol's
        size = self._dtype.itemsize
        count, left = divmod(self._bytes, size)
        if left:
            raise ItemError(
                Kind.DECODE, f"{self._bytes} bytes are no whole number of {self._name} elements of {size} bytes"
            )
        return self._result(count, self._tally.summary())

    def close(self) -> None: ...

    def _complete(self, rest: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """Counts the element that began in an earlier window, if this one ends it; returns what comes after it."""
        import torch

        missing = self._dtype.itemsize - len(rest)
        rest = torch.cat([rest, window[:missing]])
        self._rest = rest if len(rest) < self._dtype.itemsize else None
        if self._rest is None:
            self._tally.add(rest.view(self._dtype))
        return window[missing:]

    def _typed(self, tile: torch.Tensor) -> torch.Tensor:
        if tile.storage_offset() % self._dtype.itemsize or tile.data_ptr() % self._dtype.itemsize:
            tile = tile.clone()  # elements must be aligned to be read
        return tile.view(self._dtype)

    def _result(self, count: int, summary: Summary) -> dict[str, Any]:
        special = {"nan": summary.nans, "inf": summary.infs} if self._name in FLOATS else {}
        result = {
            "dtype": self._name,
            "count": count,
            "min": summary.low,
            "max": summary.high,
            "mean": summary.mean,
            "std": summary.std,
            "histogram": summary.histogram,
            "edges": summary.edges,
        }
        return result | special | ({"entropy": _entropy(summary.histogram)} if self._name == "uint8" else {})


def _entropy(histogram: list[int] | None) -> float | None:
    """Shannon's, in bits per byte."""
    if histogram is None:
        return None
    total = sum(histogram)
    return math.fsum(number / total * math.log2(total / number) for number in histogram if number)
