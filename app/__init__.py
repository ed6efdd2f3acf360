"""gpufeed: streams big blobs from URLs through one exclusive lane per device."""

__version__ = "0.1.0"
