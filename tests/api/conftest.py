from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.backend import FakeBackend, fake_backend
from tests.support.http import Api, serving
from tests.support.waiting import broker_tasks, turns
from tests.support.world import world


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    """A backend of which, and of the sessions on it, nothing may be left when the test is over."""
    async with fake_backend() as backend:
        yield backend
        await turns(20)
        assert backend.live == {}
        assert broker_tasks() == set()


@pytest.fixture
async def api(backend: FakeBackend) -> AsyncIterator[Api]:
    """The broker's application over that backend, on a real socket."""
    async with asyncio.timeout(60), world(backend) as w, serving(w) as api:
        yield api
