"""What a cell is told in a sandbox without a network, at once."""

from __future__ import annotations

import time

import kernelbroker
import pytest

from tests.e2e.support import whole_system

pytestmark = whole_system

NOTE = "Note: this sandbox has no network."


@pytest.mark.parametrize(
    "code",
    [
        "import urllib.request\nurllib.request.urlopen('https://example.com/data.csv')",
        "import pandas as pd\npd.read_csv('https://example.com/data.csv')",
        "import requests\nrequests.get('https://example.com/')",
        "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)",
        "import asyncio\nawait asyncio.open_connection('example.com', 443)",
    ],
)
async def test_an_error_tells_that_there_is_no_network(
    client: kernelbroker.Broker, code: str
) -> None:
    """The traceback ends with a note, also where a library has wrapped the system's error."""
    result = await client.run(code)
    assert not result.success
    assert result.stderr.rstrip().splitlines()[-1].startswith(NOTE)
    assert NOTE in str(result)


async def test_other_errors_have_no_note(client: kernelbroker.Broker) -> None:
    """An error that has nothing to do with the network is as it is."""
    result = await client.run("import socket\nsocket.create_connection(('127.0.0.1', 9))")
    assert "ConnectionRefusedError" in result.stderr
    assert NOTE not in result.stderr


@pytest.mark.parametrize("code", ["!pip install left-pad", "%pip install left-pad"])
async def test_pip_fails_at_once_with_the_reason(client: kernelbroker.Broker, code: str) -> None:
    """pip does not try an index that cannot be reached, and says that there is no network."""
    began = time.monotonic()
    result = await client.run(code)
    assert result.execution_time is not None
    assert result.execution_time < 8
    assert time.monotonic() - began < 30
    said = result.stdout + result.stderr
    assert "no-network-in-this-sandbox" in said
    assert "No matching distribution found for left-pad" in said
