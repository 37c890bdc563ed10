from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.support import Brokers, brokers
from tests.e2e.support import BrokerProcess
from tests.support.postgres import Server, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(postgres: Server) -> Iterator[Brokers]:
    """The brokers of a module; none runs at first."""
    with brokers(postgres) as found:
        yield found


@pytest.fixture(scope="module")
def pair(cluster: Brokers) -> tuple[BrokerProcess, BrokerProcess]:
    """Two brokers that stay."""
    return cluster.start(), cluster.start()
