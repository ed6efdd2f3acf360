"""Fixtures that every room may use: an origin, both event loops, certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from origin import DEADLINE_S, Origin

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    """A scripted origin on the test's own loop."""
    async with Origin() as running:
        yield running


@pytest.fixture(params=LOOPS)
def run_on(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end on either loop; fails where the loop had to report what nobody caught."""
    return lambda coroutine: run_to_its_end(coroutine, request.param)


def run_to_its_end(coroutine: Coroutine[Any, Any, Any], loop_name: str) -> Any:
    unheard: list[dict[str, Any]] = []

    async def bounded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with asyncio.timeout(DEADLINE_S):
            return await coroutine

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        result = runner.run(bounded())
    assert not unheard
    return result


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    """What a server for `localhost` needs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate that a client must trust for it."""
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path
