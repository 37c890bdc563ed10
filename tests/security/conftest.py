from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from kernelbroker_server.backends.base import Limits, SandboxSpec
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.backends.local_sandbox import LocalSandbox

from tests.backends.probes import running_backend

LIMITS = Limits(memory=200 * 1024**2, processes=40, tmp_size=8 * 1024**2, open_files=100)


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    async with running_backend() as backend:
        yield backend


@pytest_asyncio.fixture
async def sandbox(backend: LocalBackend) -> LocalSandbox:
    """A jail with small limits; what breaks out of it breaks out of any."""
    return await backend.launch("jail", SandboxSpec(limits=LIMITS))
