from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.request import Request, urlopen

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, Measured, running_broker

_MEASURED = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """One broker for all that does not need one of its own."""
    with running_broker(POOL__MIN_SIZE=2, POOL__MAX_SIZE=8, SANDBOX__MEMORY="1GiB") as broker:
        yield broker


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(broker.url, broker.token) as client:
        yield client


@pytest.fixture(scope="module")
def shared_id(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    """The id of a session that the tests of one module share; the first test opens it."""
    name = request.module.__name__.rpartition(".")[2]
    yield name
    close = Request(
        f"{broker.url}/api/v1/sessions/{name}",
        method="DELETE",
        headers={"Authorization": f"Bearer {broker.token}"},
    )
    with urlopen(close) as response:
        assert response.status == 204


@pytest.fixture
async def session(
    client: kernelbroker.Broker, shared_id: str
) -> AsyncIterator[kernelbroker.Session]:
    """The module's session, over a connection of the test's own."""
    async with client.session(shared_id, keep=True) as session:
        yield session


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Records durations, which are printed at the end of the test run."""

    def note(what: str, *seconds: float) -> None:
        numbers = ", ".join(f"{value * 1000:.0f}" for value in seconds)
        request.config.stash.setdefault(_MEASURED, []).append(f"{what}: {numbers} ms")

    return note


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := config.stash.get(_MEASURED, []):
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
