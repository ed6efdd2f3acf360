"""Parts of local files, read into slabs by aiofiles."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import aiofiles

from app.errors import ItemError, Kind
from app.items import Item, Part, file_path
from app.sources import Answer, Reply, StartOver, TryAgain, Version
from app.sources.sink import Sink

_FEWEST_AT_ONCE = 4
_T = TypeVar("_T")


def file_version(status: os.stat_result) -> Version:
    return Version(status.st_size, f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}")


@dataclass(frozen=True, slots=True)
class FileReply:
    """An open file, placed at the part's first byte."""

    answer: Answer
    file: Any  # aiofiles' wrapper of an io.FileIO
    path: str

    async def receive(self, sink: Sink) -> None:
        left = self.answer.length or 0
        try:
            while left:
                view = sink.view()
                if view is None:
                    await sink.wait()
                    continue
                count = await _to_its_end(self.file.readinto(view[:left]))
                if not count:
                    raise ItemError(Kind.CHANGED, f"{self.path}: it shrank while it was read")
                sink.advance(count)
                left -= count
            now = file_version(await _to_its_end(_stat(self.file)))
            reason = self.answer.version.differs(now)
            if reason is not None:
                raise ItemError(Kind.CHANGED, f"{self.path}: it changed while it was read: {reason}")
        except OSError as error:
            raise TryAgain(Kind.TRUNCATED, f"{self.path}: {error}") from error
        finally:
            await self.file.close()

    async def abandon(self) -> None:
        await self.file.close()


class FileSource:
    """file:// by aiofiles, on threads of its own."""

    def __init__(self, readers: int) -> None:
        self._executor = ThreadPoolExecutor(max(_FEWEST_AT_ONCE, readers), thread_name_prefix="files")

    def close(self) -> None:
        self._executor.shutdown(wait=False)

    async def ask(self, item: Item, part: Part | None, known: Version | None) -> Reply:
        """Open the file at the part's first byte, or for the whole of it at its own.

        Raises: TryAgain, StartOver, ItemError.
        """
        path = file_path(item.url or "")
        loop = asyncio.get_running_loop()
        try:
            # Opening a FIFO would wait for its other end: look before.
            if not stat.S_ISREG((await loop.run_in_executor(self._executor, os.stat, path)).st_mode):
                raise ItemError(Kind.UNSUPPORTED, f"{path}: not a regular file")
            file = await _to_its_end(
                aiofiles.open(path, "rb", buffering=0, loop=loop, executor=self._executor), undo=_close
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ItemError(Kind.NOT_FOUND, f"{path}: no such file") from error
        except PermissionError as error:
            raise ItemError(Kind.FORBIDDEN, f"{path}: no permission to read it") from error
        except ValueError as error:  # a NUL in the path
            raise ItemError(Kind.UNSUPPORTED, f"{path}: {error}") from error
        except OSError as error:
            raise TryAgain(Kind.CONNECT, f"{path}: {error}") from error
        try:
            version = file_version(await _stat(file))
            reason = known.differs(version) if known is not None else None
            if reason is not None:
                raise StartOver(f"{path}: it changed while it was read: {reason}")
            start = part.start if part is not None else 0
            await file.seek(start)
        except BaseException:
            await file.close()
            raise
        total = version.total or 0
        length = max(0, (min(part.stop, total) if part is not None else total) - start)
        return FileReply(Answer(start, length, version, ranges=True), file, str(path))


async def _stat(file: Any) -> os.stat_result:
    return await asyncio.get_running_loop().run_in_executor(file._executor, os.fstat, file.fileno())


async def _close(file: Any) -> None:
    await file.close()


async def _to_its_end(call: Awaitable[_T], undo: Callable[[_T], Awaitable[None]] | None = None) -> _T:
    """Await a call on a thread. When cancelled, wait for the thread all the same, which may be writing into a slab,
    and undo what it did, then go on."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                pass  # once more: the thread is no sooner done for it, and the first one goes on below
        if task.exception() is None and undo is not None:
            await undo(task.result())
        raise
