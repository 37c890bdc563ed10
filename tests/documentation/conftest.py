"""A broker that serves the documentation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.support import BrokerProcess, running_broker
from tests.support.chromium import browser

__all__ = ["browser"]


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(POOL__MIN_SIZE=0) as broker:
        yield broker
