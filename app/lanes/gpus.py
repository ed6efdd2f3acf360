"""Which devices there are. torch is imported only where a GPU may be meant."""

from __future__ import annotations

import re
from pathlib import Path

from app.errors import UsageError
from app.items import format_size


def has_gpu_nodes(dev: Path = Path("/dev")) -> bool:
    """Whether the system shows a GPU; a container may be given any of them alone."""
    return any(dev.glob("nvidia[0-9]*")) or (dev / "dxg").exists()


def find_devices(spec: str, dev: Path = Path("/dev")) -> tuple[str, ...]:
    """The devices that `--devices` names.

    Raises: UsageError for one that does not exist, naming those that do.
    """
    gpus_may_be = has_gpu_nodes(dev)
    if spec in ("auto", "cpu") and (spec == "cpu" or not gpus_may_be):
        return ("cpu",)
    names = tuple(name.strip() for name in spec.split(","))
    if spec == "auto" or any(name.startswith("cuda") for name in names):
        import torch

        gpus = tuple(f"cuda:{index}" for index in range(torch.cuda.device_count()))
    else:
        gpus = ()
    if spec == "auto":
        return gpus or ("cpu",)
    names = tuple("cuda:0" if name == "cuda" else name for name in names)
    for name in names:
        if name not in gpus and not re.fullmatch(r"cpu(:(0|[1-9][0-9]*))?", name):
            exist = ", ".join(gpus) if gpus else "no GPU is found here"
            raise UsageError(f"unknown device {name!r}; there are: cpu, cpu:0, cpu:1, … ({exist})")
    if len(set(names)) < len(names):
        raise UsageError(f"--devices {spec!r} names a device twice")
    return names


def describe_gpu(name: str) -> str:
    """The model of a GPU and all its memory, for people."""
    import torch

    properties = torch.cuda.get_device_properties(torch.device(name))
    return f"{properties.name}, {format_size(properties.total_memory)}"
