from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.backend import FakeBackend, spotless_backend
from tests.support.http import Api, serving
from tests.support.world import world


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    async with spotless_backend() as backend:
        yield backend


@pytest.fixture
async def api(backend: FakeBackend) -> AsyncIterator[Api]:
    """The broker's application over that backend, on a real socket."""
    async with asyncio.timeout(60), world(backend) as w, serving(w) as api:
        yield api
