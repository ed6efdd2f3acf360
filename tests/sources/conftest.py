"""The wire: by which loop, cable and path bytes come in."""

from __future__ import annotations

import itertools
import ssl

import pytest
from loops import LOOPS
from sources.wires import Wire


@pytest.fixture(
    params=list(itertools.product(LOOPS, ("plain", "tls"), ("in place", "copied"))), ids=lambda param: "-".join(param)
)
def wire(request, server_tls, ca_file) -> Wire:
    loop, cable, path = request.param
    client_tls = ssl.create_default_context(cafile=ca_file)
    if cable == "plain":
        return Wire(loop, None, None, path == "in place")
    return Wire(loop, server_tls, client_tls, path == "in place")


@pytest.fixture(params=[True, False], ids=["in place", "copied"])
def swap(request):
    return request.param
