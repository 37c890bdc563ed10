from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, running_broker
from tests.jupyter.support import DIRECTORY, SCRIPTS, KernelClient, connected, kernel_of


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """One broker for all tests of Jupyter's clients."""
    with running_broker(POOL__MIN_SIZE=2, POOL__MAX_SIZE=8, SANDBOX__MEMORY="1GiB") as broker:
        yield broker


@pytest.fixture
async def session(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Session]:
    """A session of an agent."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session() as session,
    ):
        yield session


@pytest.fixture
async def kernel(
    broker: BrokerProcess, session: kernelbroker.Session
) -> AsyncIterator[KernelClient]:
    """A Jupyter client of that session."""
    kernel_id = await kernel_of(broker, session.session_id)
    async with connected(broker, kernel_id) as client:
        yield client


@pytest.fixture(scope="session")
def clients() -> Path:
    """The directory of the installed clients."""
    if shutil.which("npm") is None or shutil.which("chromium") is None:
        pytest.skip("npm or Chromium is not installed")
    get = [SCRIPTS / "get", DIRECTORY]
    subprocess.run(get, check=True, timeout=280, stdin=subprocess.DEVNULL)
    return DIRECTORY
