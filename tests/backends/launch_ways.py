"""Brokers that launch sandboxes in a certain way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kernelbroker.sync

from tests.e2e.support import running_broker

IMPORTS = '["pandas", "matplotlib.pyplot"]'
"""Those of the default template: user code may rest on them."""
MIB = 1024**2

WAYS = ["plain", "fork"]
"""The ways, as parameters of tests."""


@contextmanager
def broker(way: str, **settings: Any) -> Iterator[kernelbroker.sync.Broker]:
    """A client of a broker that launches its sandboxes in this way. The broker must end in order."""
    assert way in WAYS
    settings = {"SANDBOX__IMPORTS": IMPORTS, "SANDBOX__MEMORY": 1024 * MIB} | settings
    settings = {"LOCAL__FORK_SERVER": way == "fork"} | settings
    settings = {"POOL__MIN_SIZE": 1, "POOL__MAX_SIZE": 6, "POOL__ACQUIRE_TIMEOUT": 60} | settings
    with (
        running_broker(**settings) as process,
        kernelbroker.sync.connect(process.url, process.token) as client,
    ):
        yield client
