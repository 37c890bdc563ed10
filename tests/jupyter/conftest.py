from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker_server.tenants.tokens import TokenFile

from tests.e2b.support import DIRECTORY as E2B_DIRECTORY
from tests.e2b.support import GET as E2B_GET
from tests.e2b.support import E2bClients
from tests.e2e.support import BrokerProcess, running_broker
from tests.jupyter.support import DIRECTORY, SCRIPTS, KernelClient, connected, kernel_of
from tests.support.requires import require


@pytest.fixture(scope="session")
def tokens() -> Iterator[Path]:
    """The file with the tokens of tenants other than `default`."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        yield Path(directory) / "tokens.json"


@pytest.fixture(scope="session")
def stranger(tokens: Path) -> str:
    """The token of another tenant."""
    return TokenFile(tokens).create("others")


@pytest.fixture(scope="session")
def broker(tokens: Path, stranger: str) -> Iterator[BrokerProcess]:
    """One broker for all tests of Jupyter's clients. `stranger` has written the file of tokens."""
    none_waits = {"pool": {"min_size": 0, "max_size": 2}}
    templates = {
        "refusing": {"policy": "block", **none_waits},
        "asking": {"policy": "confirm", **none_waits},
    }
    with running_broker(
        TOKEN="The-Token-Of-These-Tests",
        TOKENS_FILE=tokens,
        POOL__MIN_SIZE=2,
        POOL__MAX_SIZE=8,
        SANDBOX__MEMORY="1GiB",
        TEMPLATES=json.dumps(templates),
    ) as broker:
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


@pytest.fixture
def e2b_clients(broker: BrokerProcess) -> E2bClients:
    """E2B's clients."""
    get = [E2B_GET, E2B_DIRECTORY]
    subprocess.run(get, check=True, timeout=280, stdin=subprocess.DEVNULL)
    return E2bClients(broker)


@pytest.fixture(scope="session")
def clients() -> Path:
    """The directory of the installed clients."""
    require("npm", "chromium")
    get = [SCRIPTS / "get", DIRECTORY]
    subprocess.run(get, check=True, timeout=280, stdin=subprocess.DEVNULL)
    return DIRECTORY
