from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.backend import FakeBackend, spotless_backend
from tests.support.postgres import Server, postgres_server


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    async with spotless_backend() as backend:
        yield backend


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for all tests of this process."""
    with postgres_server() as server:
        yield server
