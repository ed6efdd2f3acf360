"""What holds of a lane on any kind of device; the tests of each kind inherit it."""

from __future__ import annotations

from lanes.lane_ends import OfEnds
from lanes.lane_items import OfItems
from lanes.lane_processors import OfProcessors
from lanes.lane_sources import OfSources


class LaneContract(OfItems, OfSources, OfProcessors, OfEnds):
    """`device_name` is what differs."""
