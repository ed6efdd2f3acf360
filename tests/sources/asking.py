"""A source of HTTP, and items to ask it for."""

from __future__ import annotations

from app.items import Item
from app.sources.http import HttpSource

BODY = bytes(range(256)) * 2000
SHORT_STALL_S = 0.1


def http(*, swap: bool = True, stall_timeout_s: float = 10.0, ca_file=None) -> HttpSource:
    ca_file = str(ca_file) if ca_file else None
    return HttpSource(connect_timeout_s=5.0, stall_timeout_s=stall_timeout_s, ca_file=ca_file, swap=swap)


def item(url: str, **fields) -> Item:
    return Item("a", url, **fields)
