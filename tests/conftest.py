"""Fixtures that every room may use: an origin, both event loops, certificates."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
from loops import LOOPS, run_to_its_end
from origin import Origin

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    """A scripted origin on the test's own loop."""
    async with Origin() as running:
        yield running


@pytest.fixture(params=LOOPS)
def run_on(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end on either loop; fails where the loop had to report what nobody caught."""
    return lambda coroutine: run_to_its_end(coroutine, request.param)


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
