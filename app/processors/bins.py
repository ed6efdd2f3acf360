"""A histogram of 256 bins over a stream whose range is not known before its end.

The rule: bins are as wide as the smallest power of two (at least 1 for integers) with which 256 of them, starting at
a multiple of that width, cover all finite values from the lowest to the highest. When a new value needs wider bins,
neighbours are merged; since every edge is a multiple of its power of two, merging is exact, and the histogram is the
one that a second pass over the whole stream would give.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

BINS = 256
_SMALLEST, _LARGEST = -1022, 1017  # exponents of a float64's widths: normal numbers, up to the whole range
_EXACT = 2.0**52  # beyond it a float64 has no fractions, and narrower bins nothing to tell apart


class Grid(Protocol):
    """Widths in rising powers of two, told by their step 0, 1, …"""

    def fit(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The step for this range, and which multiple of the width the first bin starts at: [] int64 both."""

    def place(self, values: Tensor, step: Tensor) -> Tensor:
        """Which multiple of the width each value's bin starts at: [n] int64 or float64."""

    def edge(self, multiple: int, step: int) -> float | None:
        """Where that bin starts; None where a float64 cannot hold it."""


class IntegerGrid:
    """Widths 1, 2, 4, … for int64 values."""

    def __init__(self, device: torch.device) -> None:
        self._steps = torch.arange(64, device=device)

    def fit(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        span = (high >> self._steps) - (low >> self._steps)  # [64] int64; negative where it overflows
        step = ((span < 0) | (span >= BINS)).sum()
        return step, low >> step

    def place(self, values: Tensor, step: Tensor) -> Tensor:
        return values >> step

    def edge(self, multiple: int, step: int) -> float | None:
        return multiple << step


class FloatGrid:
    """Widths from 2^-1022 to 2^1017 for float64 values."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._underflows = dtype is torch.float64  # products of narrower floats never do
        scales = [2.0**-exponent for exponent in range(_SMALLEST, _LARGEST + 1)]
        self._scales = torch.tensor(scales, dtype=torch.float64, device=device)  # [2040]

    def fit(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        first, last = self._floor(low, self._scales), self._floor(high, self._scales)
        fits = (last - first < BINS) & (first.abs() < _EXACT) & (last.abs() < _EXACT)
        step = fits.logical_not_().sum()
        return step, first.take(step).to(torch.int64)

    def place(self, values: Tensor, step: Tensor) -> Tensor:
        return self._floor(values, self._scales.take(step))

    def _floor(self, values: Tensor, scales: Tensor) -> Tensor:
        scaled = values * scales
        if self._underflows:
            scaled.masked_fill_((values < 0) & (scaled == 0), -1.0)
        return scaled.floor_()

    def edge(self, multiple: int, step: int) -> float | None:
        try:
            return math.ldexp(multiple, step + _SMALLEST)
        except OverflowError:
            return None


class Bins:
    """The histogram so far, in `counts`, [256] int64 on the device."""

    def __init__(self, grid: Grid, device: torch.device) -> None:
        self.counts = torch.zeros(BINS, dtype=torch.int64, device=device)
        self._grid = grid
        self._bins = torch.arange(BINS, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._first = torch.zeros((), dtype=torch.int64, device=device)

    def cover(self, low: Tensor, high: Tensor) -> None:
        """Merges bins until they cover this range, which never shrinks from call to call: [] each."""
        step, first = self._grid.fit(low, high)
        merged = ((self._first + self._bins) >> (step - self._step).clamp(max=63)) - first
        # What lies outside the range has counted nothing, so where it goes is all the same.
        self.counts = torch.zeros_like(self.counts).scatter_add_(0, merged.clamp_(0, BINS - 1), self.counts)
        self._step, self._first = step, first

    def add(self, values: Tensor, counts: Tensor | None = None) -> None:
        """Counts values that are covered, [n], once each or as often as `counts`, [n] int64, says."""
        codes = self._grid.place(values, self._step).sub_(self._first)
        if counts is None:
            self.counts += count_codes(codes.to(torch.uint8), BINS)
        else:
            self.counts.scatter_add_(0, codes.long(), counts)

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """The counts, and what `described` needs beside them: on the device still."""
        return self.counts, self._first, self._step

    def described(self, counts: Tensor, first: Tensor, step: Tensor) -> tuple[list[int], list[float | None]]:
        """Histogram and edges, of a state on the host."""
        start, width = int(first), int(step)
        return counts.tolist(), [self._grid.edge(start, width), self._grid.edge(start + BINS, width)]


def count_codes(codes: Tensor, number: int) -> Tensor:
    """How often each of 0 … number - 1 comes, [number] int64, in [n] uint8 or uint16 codes."""
    if codes.is_cuda:  # bincount would wait for the device twice, to ask for the lowest and the highest
        return torch.histc(codes.to(torch.int32), number, 0, number).to(torch.int64)
    if codes.dtype is not torch.uint8:
        codes = codes.to(torch.int32)  # bincount knows no uint16
    return torch.bincount(codes, minlength=number)
