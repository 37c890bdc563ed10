from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.backend import FakeBackend, fake_backend
from tests.support.waiting import broker_tasks, turns


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    """A backend of which, and of the sessions on it, nothing may be left when the test is over."""
    async with fake_backend() as backend:
        yield backend
        await turns(20)
        assert backend.live == {}
        assert broker_tasks() == set()
        assert list((backend.root / "sandboxes").iterdir()) == []
