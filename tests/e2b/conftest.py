from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelbroker_server.tenants.tokens import TokenFile

from tests.e2b.support import DIRECTORY, GET, E2bClients
from tests.e2e.support import BrokerProcess, running_broker
from tests.support.requires import require


@pytest.fixture(scope="session")
def e2b_tokens() -> Iterator[Path]:
    """The file with the tokens of tenants other than `default`."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        yield Path(directory) / "tokens.json"


@pytest.fixture(scope="session")
def e2b_stranger(e2b_tokens: Path) -> str:
    """The token of another tenant."""
    return TokenFile(e2b_tokens).create("others")


@pytest.fixture(scope="session")
def e2b_broker(e2b_tokens: Path, e2b_stranger: str) -> Iterator[BrokerProcess]:
    """One broker for all that does not need one of its own. `e2b_stranger` wrote the file of tokens."""
    with running_broker(
        TOKEN="the-token-of-these-tests",
        TOKENS_FILE=e2b_tokens,
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
    require("npm")
    subprocess.run([GET, DIRECTORY], check=True, timeout=300, stdin=subprocess.DEVNULL)


@pytest.fixture
def e2b(e2b_broker: BrokerProcess, installed: None) -> E2bClients:
    """Runs E2B's clients against the broker."""
    return E2bClients(e2b_broker)
