"""Both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop
from origin import DEADLINE_S

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_to_its_end(coroutine: Coroutine[Any, Any, Any], loop_name: str) -> Any:
    """Run it in bounded time; fails where the loop had to report what nobody caught."""
    unheard: list[dict[str, Any]] = []

    async def bounded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with asyncio.timeout(DEADLINE_S):
            return await coroutine

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        result = runner.run(bounded())
    assert not unheard
    return result
