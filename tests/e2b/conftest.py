from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2b.support import DIRECTORY, GET, E2bClients
from tests.e2e.support import BrokerProcess, running_broker


@pytest.fixture(scope="session")
def e2b_broker() -> Iterator[BrokerProcess]:
    """One broker for all that does not need one of its own."""
    with running_broker(
        SANDBOX__PORTS="[8000, 8001]",
        SANDBOX__PROCESSES=400,
        POOL__MIN_SIZE=2,
        POOL__MAX_SIZE=8,
        SANDBOX__MEMORY="1GiB",
        SESSIONS__MAX_TIMEOUT=60,
    ) as broker:
        yield broker


@pytest.fixture(scope="session")
def installed() -> None:
    """E2B's clients are installed."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    subprocess.run([GET, DIRECTORY], check=True, timeout=300, stdin=subprocess.DEVNULL)


@pytest.fixture
def e2b(e2b_broker: BrokerProcess, installed: None) -> E2bClients:
    """Runs E2B's clients against the broker."""
    return E2bClients(e2b_broker)
