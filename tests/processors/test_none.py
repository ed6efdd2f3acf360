from __future__ import annotations

from app.items import Item
from app.processors import DeviceInfo
from app.processors.none import Nothing


def test_it_does_nothing_to_whole_blobs_and_says_null() -> None:
    nothing = Nothing()
    nothing.open(DeviceInfo("cpu", None))
    blob = bytearray(b"as it was")
    assert nothing.process(memoryview(blob), Item("x", "file:///x")) is None
    assert blob == b"as it was"
    nothing.close()
