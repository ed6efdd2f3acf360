"""What runs on the device: the protocol, and loading `module:name`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from app.errors import UsageError
from app.items import Item

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The device that a processor's `open` is given."""

    name: str  # the lane's name, as in --devices: "cuda:0", "cpu:1"
    torch_device: torch.device | None  # None where the processor needs no torch, and on the CPU


class Processor(Protocol):
    """What a user writes. A plain function `process(blob, item)` does as well; only `process`, or with `streams`
    `begin`, `update` and `finish`, must be there: the rest has these defaults.

    All methods are called on the lane's device thread, under `torch.inference_mode()` and, on CUDA, on the lane's
    compute stream. A result is whatever JSON can hold, with tensors, arrays and bytes anywhere in it; it is copied out
    before the blob's memory is used again. Raising fails the item as `processor`; raising `app.errors.ItemError` names
    another kind.
    """

    lands_on: ClassVar[Literal["device", "host"]] = "device"  # where blob and windows are
    streams: ClassVar[bool] = False  # True: begin, update, finish
    needs_torch: ClassVar[bool] = True  # False: bytes in host memory come as a memoryview, and torch is not imported

    def open(self, device: DeviceInfo) -> None:
        """Called once per lane, before its first item."""

    def process(self, blob: torch.Tensor, item: Item) -> Any:
        """One whole blob: [n] uint8 on the lane's device (or on the host); valid until this returns."""

    def begin(self, item: Item) -> None:
        """A stream starts. Where an item must be fetched anew, `begin` comes again, and what was before is void."""

    def update(self, window: torch.Tensor, offset: int) -> None:
        """Its next bytes, in order without gaps: [n] uint8, from this offset of the item; valid until this returns."""

    def finish(self, item: Item) -> Any:
        """The stream is whole; returns the result."""

    def close(self) -> None:
        """Called once, after the lane's last item."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A processor's class or function with its arguments bound: what a lane needs to know before it builds one."""

    spec: str
    arguments: Mapping[str, Any]
    lands_on: Literal["device", "host"]
    streams: bool
    needs_torch: bool
    build: Any  # () → Built; called once per lane on its device thread


@dataclass(frozen=True, slots=True)
class Built:
    """What a lane calls: every method of the protocol, where the user left one out a call that does nothing."""

    open: Callable[[DeviceInfo], None]
    process: Callable[[Any, Item], Any]
    begin: Callable[[Item], None]
    update: Callable[[Any, int], None]
    finish: Callable[[Item], Any]
    close: Callable[[], None]


BUILT_IN = {
    "stats": ("app.processors.stats", "Stats"),
    "digest": ("app.processors.digest", "Digest"),
    "none": ("app.processors.none", "Nothing"),
}
_FORM = f"a processor is {', '.join(BUILT_IN)}, or module:name of a function or class"
_OF_WHOLE_BLOBS = ("process",)
_OF_STREAMS = ("begin", "update", "finish")


def load(spec: str, arguments: Mapping[str, Any], search: Path) -> Loaded:
    """The processor of this name, with its arguments bound; a user's class is not built yet.

    Modules are sought in the folder `search` first, which stays in `sys.path`, then among the installed packages.

    Raises: UsageError, in one line, where there is none, it is none, or its arguments do not fit.
    """
    if spec in BUILT_IN:
        module, name = BUILT_IN[spec]
        found = getattr(importlib.import_module(module), name)
    else:
        found = _find(spec, search)
    if inspect.isclass(found):
        loaded = _from_class(spec, found, arguments)
    elif _has(found, _OF_WHOLE_BLOBS) or _has(found, _OF_STREAMS):
        loaded = _from_instance(spec, found, arguments)
    elif callable(found):
        loaded = _from_function(spec, found, arguments)
    else:
        raise UsageError(f"--processor {spec}: it is of type {type(found).__name__}; {_FORM}")
    if spec in BUILT_IN:
        loaded.build()  # their constructors do nothing but check the arguments' values
    return loaded


def _find(spec: str, search: Path) -> Any:
    """Imports the module and takes the name out of it."""
    module_name, _, name = spec.partition(":")
    if not module_name or not all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")]):
        near = difflib.get_close_matches(spec, BUILT_IN)
        raise UsageError(f"unknown processor {spec!r}{_near(near)}; {_FORM}")
    if module_name.endswith(".py"):
        raise UsageError(f"unknown processor {spec!r}; write {module_name[:-3]}:{name}, a module's name and no file's")
    folder = str(search.resolve())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a user's module may raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"--processor {spec} cannot be imported: {said}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [other for other in dir(found) if not other.startswith("_")])
            raise UsageError(f"--processor {spec}: {module_name} has no {part!r}{_near(near)}")
        found = getattr(found, part)
    return found


def _near(names: list[str]) -> str:
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _has(found: Any, methods: tuple[str, ...]) -> bool:
    return all(callable(getattr(found, method, None)) for method in methods)


def _from_class(spec: str, found: type, arguments: Mapping[str, Any]) -> Loaded:
    _check_methods(spec, found)
    _check_arguments(spec, found, (), arguments)
    return _loaded(spec, found, arguments, lambda: _built(found(**arguments)))


def _from_instance(spec: str, found: Any, arguments: Mapping[str, Any]) -> Loaded:
    _check_methods(spec, found)
    if arguments:
        raise UsageError(
            f"--processor {spec} is an object made already, and takes no arguments: {', '.join(arguments)}"
        )
    return _loaded(spec, found, arguments, lambda: _built(found))


def _from_function(spec: str, found: Callable[..., Any], arguments: Mapping[str, Any]) -> Loaded:
    if inspect.iscoroutinefunction(found):
        raise UsageError(f"--processor {spec} is a coroutine function; write def, since it has a thread of its own")
    if getattr(found, "streams", False):
        raise UsageError(f"--processor {spec} is a function; what streams is a class with {', '.join(_OF_STREAMS)}")
    _check_arguments(spec, found, (None, None), arguments)
    function = partial(found, **arguments)
    built = Built(_nothing, function, _nothing, _nothing, _nothing, _nothing)
    return _loaded(spec, found, arguments, lambda: built)


def _check_methods(spec: str, found: Any) -> None:
    methods = _OF_STREAMS if getattr(found, "streams", False) else _OF_WHOLE_BLOBS
    missing = [method for method in methods if not _has(found, (method,))]
    if missing:
        raise UsageError(f"--processor {spec} has no {' and no '.join(missing)}; {_FORM}")
    for method in methods:
        if inspect.iscoroutinefunction(getattr(found, method)):
            raise UsageError(f"--processor {spec}: {method} is a coroutine function; write def")


def _check_arguments(spec: str, found: Any, given: tuple[None, ...], arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):  # compiled ones may tell none
        return
    try:
        signature.bind(*given, **arguments)
    except TypeError as error:
        form = " ".join(str(signature).split())
        raise UsageError(f"--processor {spec}{form} does not fit its arguments: {error}") from None


def _loaded(spec: str, found: Any, arguments: Mapping[str, Any], build: Callable[[], Built]) -> Loaded:
    """Reads what the lane must know beforehand off a class, object or function."""
    lands_on = getattr(found, "lands_on", Processor.lands_on)
    if lands_on not in ("device", "host"):
        raise UsageError(f"--processor {spec}: lands_on is {lands_on!r}; it is 'device' or 'host'")
    streams = getattr(found, "streams", Processor.streams)
    needs_torch = getattr(found, "needs_torch", Processor.needs_torch)
    for name, value in (("streams", streams), ("needs_torch", needs_torch)):
        if not isinstance(value, bool):
            raise UsageError(f"--processor {spec}: {name} is {value!r}; it is True or False")
    return Loaded(spec, dict(arguments), lands_on, streams, needs_torch, build)


def _built(processor: Any) -> Built:
    names = ("open", "process", "begin", "update", "finish", "close")
    return Built(*(getattr(processor, name, _nothing) for name in names))


def _nothing(*_: object) -> None:
    """What a method does that the user left out."""
