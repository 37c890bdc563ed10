from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.backend import FakeBackend, spotless_backend


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    async with spotless_backend() as backend:
        yield backend
