"""One device and the one thread that uses it: land, process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import mmap
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from app.errors import ItemError, Kind, UsageError
from app.items import Failure
from app.lanes.arena import Memory
from app.lanes.faults import failure, out_of_memory, poisons
from app.lanes.plain import copy_out
from app.lanes.steps import (
    Begin,
    Copied,
    DeviceLost,
    Done,
    Failed,
    Finish,
    Landing,
    Process,
    Step,
    Update,
)
from app.processors import DeviceInfo, Loaded

_LOG = logging.getLogger("gpufeed.device")


class Device:
    """The single-thread executor: whatever runs on the device or is user code runs there, one call after another.

    A cancelled call goes on on its thread, and the next one queues behind it.
    """

    def __init__(
        self, name: str, loaded: Loaded, *, torch_threads: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.is_cuda = name.startswith("cuda")
        self._loaded = loaded
        self._torch_threads = torch_threads
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"device-{name}")
        self._copy_thread = ThreadPoolExecutor(1, thread_name_prefix=f"copy-{name}")
        self._torch: Any = None
        self._torch_device: Any = None
        self._stream: Any = None
        self._copy_stream: Any = None
        self._processor: Any = None
        self._lost: str | None = None
        self._is_open = False
        self._cannot_pin = False

    @property
    def lands_here(self) -> bool:
        """Whether whole items land in this device's own memory rather than on the host."""
        return self.is_cuda and self._loaded.lands_on == "device"

    @property
    def uses_torch(self) -> bool:
        return self._loaded.needs_torch or self.lands_here

    async def open(self) -> None:
        """Set up the device and open the processor, as the thread's first call. Cancelled, it leaves it running.

        Raises: UsageError where the processor or the device cannot be opened.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        self._is_open = True

    def call(self, steps: list[Step]) -> asyncio.Future[list[Done | Failed]]:
        """Run steps in order; one result each. The steps of an item after a failed one of it are not run.

        The list is emptied, so that nothing here refers to a blob once its result is there. The future raises
        DeviceLost; cancelled, it leaves the thread running.
        """
        return asyncio.get_running_loop().run_in_executor(self._thread, self._run, steps)

    def land(self, landing: Landing, window: memoryview, offset: int, memory: Memory) -> asyncio.Future[Copied]:
        """Copy a window to its place in a landing, which is allocated with its first window.

        The future raises ItemError (out of memory) or DeviceLost; cancelled, it leaves the copy running.
        """
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._copy_thread, self._land, landing, window, offset, memory)

    def free_bytes(self) -> asyncio.Future[int]:
        """Free memory of a GPU."""
        return asyncio.get_running_loop().run_in_executor(self._copy_thread, self._free_bytes)

    async def close(self) -> None:
        """Close the processor and end the threads, after what runs on them. Cancelled, the threads are left.

        Where opening it was cancelled, nobody waits for its end.
        """
        loop = asyncio.get_running_loop()
        try:
            if self._is_open:
                await loop.run_in_executor(self._thread, self._close)
        finally:
            self._thread.shutdown(wait=False)
            self._copy_thread.shutdown(wait=False)

    # On the device thread:

    def _open(self) -> None:
        try:
            if self.uses_torch:
                import torch

                self._torch = torch
                self._torch_device = torch.device(self.name if self.is_cuda else "cpu")
                torch.set_num_threads(self._torch_threads)
                if self.is_cuda:
                    torch.cuda.set_device(self._torch_device)
                    self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                    torch.cuda.set_stream(self._stream)
            with self._inference():
                self._processor = self._loaded.build()
                self._processor.open(DeviceInfo(self.name, self._torch_device if self.is_cuda else None))
        except UsageError:
            raise
        except BaseException as error:  # SystemExit would end the event loop
            raise UsageError(
                f"processor {self._loaded.spec!r} cannot be opened on {self.name}: {type(error).__name__}: {error}"
            ) from error

    def _inference(self) -> AbstractContextManager[Any]:
        return self._torch.inference_mode() if self._torch is not None else nullcontext()

    def _close(self) -> None:
        if self._processor is not None and self._lost is None:
            try:
                with self._inference():
                    self._processor.close()
            except BaseException as error:  # its items have their outcomes already
                said = f"{type(error).__name__}: {error}"
                _LOG.warning("processor %r could not be closed on %s: %s", self._loaded.spec, self.name, said)
        self._processor = None

    def _run(self, steps: list[Step]) -> list[Done | Failed]:
        results: list[Done | Failed] = []
        failed: dict[str, Failure] = {}
        steps.reverse()
        while steps:
            step = steps.pop()
            item_id, began_at_s = step.item.id, self._clock()
            if item_id in failed:
                results.append(Failed(failed[item_id], began_at_s, began_at_s))
                continue
            if self._lost is not None:
                raise DeviceLost(self.name, self._lost, None)
            outcome = self._attempt(step)
            if isinstance(outcome, Failure) and outcome.kind is Kind.OUT_OF_MEMORY and isinstance(step, Process):
                self._collect()
                outcome = self._attempt(step)
            if isinstance(outcome, Failure):
                failed[item_id] = outcome
                results.append(Failed(outcome, began_at_s, self._clock()))
            else:
                results.append(Done(outcome, began_at_s, self._clock()))
        return results

    def _attempt(self, step: Step) -> Any:
        """The step's value, or a Failure. No exception object leaves: its frames would keep tensors alive."""
        try:
            with self._inference():
                value = copy_out(self._step(step))
            if self._stream is not None:
                self._stream.synchronize()
            return value
        except BaseException as error:
            fault = failure(error)
            lost = fault.message if self.is_cuda and poisons(error) else self._settle()
            if lost is not None:
                self._lost = lost
                raise DeviceLost(self.name, lost, step.item.id) from None
            return fault

    def _settle(self) -> str | None:
        """Wait for the kernels of a failed step, which may still use its landing; why the device is lost, if it is."""
        if self._stream is not None:
            try:
                self._stream.synchronize()
            except Exception as error:
                return failure(error).message
        return None

    def _step(self, step: Step) -> Any:
        match step:
            case Process():
                return self._processor.process(self._tensor(step.blob, step.memory), step.item)
            case Begin():
                return self._processor.begin(step.item)
            case Update():
                return self._processor.update(self._tensor(step.window, step.memory), step.offset)
            case Finish():
                return self._processor.finish(step.item)

    def _tensor(self, blob: Any, memory: Memory | None) -> Any:
        if blob is not None and (memory is None or not self.uses_torch):
            return blob
        if blob is None or not len(blob):
            return self._torch.empty(0, dtype=self._torch.uint8, device=self._torch_device if self.lands_here else None)
        tensor = self._torch.frombuffer(blob, dtype=self._torch.uint8)  # [n] uint8 host
        if self.is_cuda and memory is not None:
            self._pin(memory)
        return tensor.to(self._torch_device, non_blocking=True) if self.lands_here else tensor

    def _collect(self) -> None:
        gc.collect()
        if self.is_cuda:
            try:
                self._torch.cuda.empty_cache()
            except Exception as error:  # the next attempt says what is wrong
                _LOG.warning("%s: the cache could not be emptied: %s", self.name, error)

    # On the copy thread (and `_pin` on either: CUDA's own calls may be made from any thread):

    def _pin(self, memory: Memory) -> None:
        """Register its touched bytes with CUDA, and no more: registering makes pages of what it covers. Where that
        fails, copies are slower, and that is all."""
        if memory.pinned >= memory.touched or self._cannot_pin:
            return
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory.map))
        cudart, check = self._torch.cuda.cudart(), self._torch.cuda.check_error
        try:
            if memory.pinned:
                memory.pinned = 0
                check(cudart.cudaHostUnregister(address))
            check(cudart.cudaHostRegister(address, memory.touched, 0))
        except Exception as error:
            self._cannot_pin = True
            _LOG.warning("%s: host memory cannot be pinned, and copies are slower: %s", self.name, error)
            return
        memory.pinned = memory.touched
        if not memory.outlived:
            # Unmapped while registered, its pages would stay, and its addresses could not be registered again.
            memory.outlived = True
            weakref.finalize(memory, _unpin, self._copy_thread, cudart, memory.map, address).atexit = False

    def _copying(self) -> Any:
        if self._copy_stream is None:
            import torch

            self._torch = torch
            torch.cuda.set_device(torch.device(self.name))
            self._copy_stream = torch.cuda.Stream(torch.device(self.name))  # type: ignore[no-untyped-call]
        return self._torch.cuda.stream(self._copy_stream)

    def _land(self, landing: Landing, window: memoryview, offset: int, memory: Memory) -> Copied:
        began_at_s = self._clock()
        try:
            with self._copying(), self._torch.inference_mode():
                if landing.tensor is None:
                    landing.tensor = self._allocate(landing.length)
                self._pin(memory)
                source = self._torch.frombuffer(window, dtype=self._torch.uint8)  # [n] uint8 host, pinned
                landing.tensor[offset : offset + len(window)].copy_(source, non_blocking=True)
                event = self._torch.cuda.Event(blocking=True)  # its wait sleeps
                event.record(self._copy_stream)
            event.synchronize()
        except Exception as error:
            raise self._of_copy(error) from None
        return Copied(began_at_s, self._clock())

    def _allocate(self, length: int) -> Any:
        for last in (False, True):
            try:
                return self._torch.empty(length, dtype=self._torch.uint8, device=self.name)  # [n] uint8 cuda
            except Exception as error:
                if last or not out_of_memory(error):
                    raise
            self._collect()
        raise AssertionError

    def _free_bytes(self) -> int:
        with self._copying():
            return int(self._torch.cuda.mem_get_info()[0])

    def _of_copy(self, error: Exception) -> Exception:
        fault = failure(error)
        if fault.kind is Kind.OUT_OF_MEMORY:
            return ItemError(Kind.OUT_OF_MEMORY, fault.message)
        self._lost = fault.message
        return DeviceLost(self.name, fault.message, None)


def _unpin(copy_thread: ThreadPoolExecutor, cudart: Any, pages: mmap.mmap, address: int) -> None:
    """Unregister pages whose Memory is gone, on the thread whose GPU it is, and only then let them go."""
    try:
        copy_thread.submit(lambda: cudart.cudaHostUnregister(address) if pages is not None else None)
    except RuntimeError:
        pass  # the lane has ended, and the process is about to
