"""Figures and names as texts that fit a line."""

from __future__ import annotations

from collections.abc import Mapping

from app.errors import Kind


def printable(text: str) -> str:
    """The text with whatever is no visible character written as an escape: one line, and no terminal control."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode()
        for letter in text
    )


def shortened(text: str, width: int) -> str:
    """The text with its middle left out where it is longer than so many characters."""
    if len(text) <= width:
        return text
    if width < 3:
        return text[:width]
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def duration(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any: `2:05`, `1:00:00`."""
    whole = int(seconds + 0.5)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def rate_text(bytes_per_s: float) -> str:
    """GB/s, in which networks and disks are compared; MB/s where that would be nothing."""
    return f"{bytes_per_s / 1e9:.2f} GB/s" if bytes_per_s >= 1e7 or not bytes_per_s else f"{bytes_per_s / 1e6:.3g} MB/s"


def kinds_text(failed: Mapping[Kind, int]) -> str:
    """Failures by kind, the most frequent first: `not_found 2, timeout 1`."""
    ordered = sorted(failed.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{kind} {count:,}" for kind, count in ordered)
