from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.backend import FakeBackend, spotless_backend
from tests.support.mcp import McpApi, mcp_api


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    async with spotless_backend() as backend:
        yield backend


@pytest.fixture
async def api(backend: FakeBackend) -> AsyncIterator[McpApi]:
    """The broker's application with `/mcp`, over scripted sandboxes, on a real socket."""
    async with mcp_api(backend) as api:
        yield api
