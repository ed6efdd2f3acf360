"""What `stats` counts, tile by tile, on the device: nothing comes back to the host before `summary`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from app.processors.bins import BINS, Bins, FloatGrid, Grid, IntegerGrid, count_codes

NARROW_TILE = {"cuda": 1 << 22, "cpu": 1 << 20}  # elements: on a GPU as few launches as 64 MiB allow, on a CPU what
WIDE_TILE = {"cuda": 1 << 20, "cpu": 1 << 17}  # stays in its cache
_LOW_32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of the elements: low to edges of the finite ones alone, None where there are none."""

    nans: int = 0
    infs: int = 0
    low: float | None = None
    high: float | None = None
    mean: float | None = None  # None also where a float64 cannot hold it
    std: float | None = None  # of the population; None also where a float64 cannot hold the sum of squares
    histogram: list[int] | None = None  # [256]
    edges: list[float | None] | None = None  # of the first bin and after the last; None beyond float64


class Tally(Protocol):
    tile_elements: int  # so many at once keep the extra memory under 64 MiB

    def add(self, tile: Tensor) -> None:
        """Counts a tile, [n] of the tally's dtype on its device, n ≥ 1; nothing of it is kept."""

    def summary(self) -> Summary:
        """All tiles so far; the only call that waits for the device."""


def grid_for(dtype: torch.dtype, device: torch.device) -> Grid:
    """The histogram's grid; made once and used for many tallies."""
    return FloatGrid(dtype, device) if dtype.is_floating_point else IntegerGrid(device)


def tally_for(dtype: torch.dtype, device: torch.device, grid: Grid) -> Tally:
    if dtype.itemsize <= 2:
        return NarrowTally(dtype, device)
    return FloatTally(device, grid) if dtype.is_floating_point else IntegerTally(device, grid)


class NarrowTally:
    """Elements of one or two bytes: how often each bit pattern comes, of 256 or 65,536, and so everything, exactly."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.tile_elements = NARROW_TILE[device.type]
        self._dtype = dtype
        self._pattern = torch.uint8 if dtype.itemsize == 1 else torch.uint16
        self._counts = torch.zeros(1 << 8 * dtype.itemsize, dtype=torch.int64, device=device)  # [256 or 65536]

    def add(self, tile: Tensor) -> None:
        self._counts += count_codes(tile.view(self._pattern), len(self._counts))

    def summary(self) -> Summary:
        counts = self._counts.cpu()
        patterns = counts.nonzero().flatten()  # [m] int64, those that came
        values = patterns.to(torch.int32).to(self._pattern).view(self._dtype).to(torch.float64)  # [m] float64
        counts = counts.take(patterns)
        finite = values.isfinite()
        nans = int(counts[values.isnan()].sum())
        infs = int(counts[~finite].sum()) - nans
        values, counts = values[finite], counts[finite]
        if not len(values):
            return Summary(nans, infs)
        number = int(counts.sum())
        mean = _total(values, counts, self._dtype) / number
        square = float((counts * (values - mean).square()).sum()) / number
        low, high = _number(float(values.min()), self._dtype), _number(float(values.max()), self._dtype)
        histogram, edges = self._histogram(values, counts)
        return Summary(nans, infs, low, high, mean, math.sqrt(square), histogram, edges)

    def _histogram(self, values: Tensor, counts: Tensor) -> tuple[list[int], list[float | None]]:
        if self._dtype.itemsize == 1:
            first = torch.iinfo(self._dtype).min
            every = torch.zeros(BINS, dtype=torch.int64).scatter_add_(0, values.long() - first, counts)
            return every.tolist(), [first, first + BINS]
        bins = Bins(grid_for(self._dtype, values.device), values.device)
        values = values if self._dtype.is_floating_point else values.long()
        bins.cover(values.min(), values.max())
        bins.add(values, counts)
        return bins.described(*bins.state())


class _Moments:
    """Mean and sum of squares of deviations from a pivot, in float64; tiles are combined as in Chan, Golub and LeVeque,
    "Updating formulae and a pairwise algorithm for computing sample variances", 1979."""

    def __init__(self, device: torch.device) -> None:
        self.number = torch.zeros((), dtype=torch.float64, device=device)  # exact up to 2^53
        self.mean = torch.zeros((), dtype=torch.float64, device=device)
        self.square = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, deviations: Tensor, number: Tensor, void: Tensor | None = None) -> None:
        """Adds so many deviations, [n] float64, which are overwritten; void ones, [n] bool, are 0 and do not count."""
        number = number.to(torch.float64)
        mean = deviations.sum() / number.clamp(min=1)
        deviations -= mean
        if void is not None:
            deviations.masked_fill_(void, 0.0)
        together = self.number + number
        share = number / together.clamp(min=1)
        apart = mean - self.mean
        self.square = self.square + deviations.square_().sum() + apart.square() * share * self.number
        self.mean = self.mean + apart * share
        self.number = together

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.number, self.mean, self.square


class IntegerTally:
    """Integers of four or eight bytes; count, min, max and histogram are exact."""

    def __init__(self, device: torch.device, grid: Grid) -> None:
        self.tile_elements = WIDE_TILE[device.type]
        self._bins = Bins(grid, device)
        self._moments = _Moments(device)
        self._pivot: Tensor | None = None  # [] int64, an element: so near the others that float64 loses least
        limits = torch.iinfo(torch.int64)
        self._low = torch.full((), limits.max, dtype=torch.int64, device=device)
        self._high = torch.full((), limits.min, dtype=torch.int64, device=device)

    def add(self, tile: Tensor) -> None:
        values = tile.to(torch.int64)
        low, high = values.aminmax()
        self._low, self._high = torch.minimum(self._low, low), torch.maximum(self._high, high)
        self._bins.cover(self._low, self._high)
        self._bins.add(values)
        self._pivot = low if self._pivot is None else self._pivot
        if tile.dtype is torch.int64:  # a difference may need 65 bits: halves first, and rounded once
            deviations = ((values >> 32) - (self._pivot >> 32)).to(torch.float64).mul_(2.0**32)
            deviations += (values & _LOW_32) - (self._pivot & _LOW_32)
        else:
            deviations = (values - self._pivot).to(torch.float64)
        self._moments.add(deviations, torch.full_like(low, len(values)))

    def summary(self) -> Summary:
        if self._pivot is None:
            return Summary()
        low, high, pivot, number, mean, square, *bins = _on_host(
            self._low, self._high, self._pivot, *self._moments.state(), *self._bins.state()
        )
        average, std = _mean_and_std(int(pivot), int(number), float(mean), float(square))
        return Summary(0, 0, int(low), int(high), average, std, *self._bins.described(*bins))


class FloatTally:
    """Floats of four or eight bytes; all but mean and standard deviation is exact."""

    def __init__(self, device: torch.device, grid: Grid) -> None:
        self.tile_elements = WIDE_TILE[device.type]
        self._bins = Bins(grid, device)
        self._moments = _Moments(device)
        self._nans = torch.zeros((), dtype=torch.int64, device=device)
        self._infs = torch.zeros((), dtype=torch.int64, device=device)
        self._pivot = torch.zeros((), dtype=torch.float64, device=device)
        self._low = torch.full((), math.inf, dtype=torch.float64, device=device)
        self._high = torch.full((), -math.inf, dtype=torch.float64, device=device)

    def add(self, tile: Tensor) -> None:
        values = tile.to(torch.float64)
        low, high = values.aminmax()
        number = torch.full_like(self._nans, len(values))
        void = None
        # On a GPU to look is to wait; on a CPU it is free, and nearly all tiles are finite throughout.
        if values.is_cuda or not (low.isfinite() and high.isfinite()):
            void = values.isfinite().logical_not_()  # [n] bool
            low, high = values.masked_fill(void, math.inf).amin(), values.masked_fill(void, -math.inf).amax()
            nans, unfit = values.isnan().sum(), void.sum()
            self._nans, self._infs, number = self._nans + nans, self._infs + unfit - nans, number - unfit
        self._low, self._high = torch.minimum(self._low, low), torch.maximum(self._high, high)
        self._pivot = self._pivot.where(self._moments.number > 0, low)
        self._add_bins(values, void)
        deviations = values - self._pivot
        if void is not None:
            deviations.masked_fill_(void, 0.0)
        self._moments.add(deviations, number, void)

    def _add_bins(self, values: Tensor, void: Tensor | None) -> None:
        any_finite = self._low <= self._high
        low, high = self._low.where(any_finite, 0.0), self._high.where(any_finite, 0.0)
        self._bins.cover(low, high)
        self._bins.add(values if void is None else values.where(~void, low))
        if void is not None:
            self._bins.counts[0] -= void.sum()  # the lowest value is in the first bin

    def summary(self) -> Summary:
        nans, infs, low, high, pivot, number, mean, square, *bins = _on_host(
            self._nans, self._infs, self._low, self._high, self._pivot, *self._moments.state(), *self._bins.state()
        )
        if not number:
            return Summary(int(nans), int(infs))
        average, std = _mean_and_std(float(pivot), int(number), float(mean), float(square))
        return Summary(int(nans), int(infs), float(low), float(high), average, std, *self._bins.described(*bins))


def _on_host(*tensors: Tensor) -> list[Tensor]:
    """These tensors, of eight bytes an element, on the host, by one copy."""
    together = torch.cat([tensor.flatten().view(torch.int64) for tensor in tensors]).cpu()
    parts = torch.split_with_sizes(together, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _mean_and_std(pivot: float, number: int, mean: float, square: float) -> tuple[float | None, float | None]:
    """Of the population, from the moments of deviations from the pivot."""
    average, variance = pivot + mean, square / number
    return (
        average if math.isfinite(average) else None,
        math.sqrt(variance) if math.isfinite(variance) else None,
    )


def _total(values: Tensor, counts: Tensor, dtype: torch.dtype) -> float:
    """The sum of the values so often: exact for integers."""
    if dtype.is_floating_point:
        return float((values * counts).sum())
    return int((values.long() * counts).sum())


def _number(value: float, dtype: torch.dtype) -> float:
    return value if dtype.is_floating_point else int(value)
