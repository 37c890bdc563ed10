from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from kernelbroker_server.backends.local import LocalBackend

from tests.backends.probes import running_backend


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    async with running_backend() as backend:
        yield backend
