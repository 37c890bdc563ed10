"""Brokers that launch sandboxes in a certain way: each as a new process, or forked from a server."""

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


def settings_of(way: str) -> dict[str, Any]:
    """The settings of a broker that launches its sandboxes in this way."""
    assert way in WAYS
    return {
        "LOCAL__FORK_SERVER": way == "fork",
        "SANDBOX__IMPORTS": IMPORTS,
        "SANDBOX__MEMORY": 1024 * MIB,
        "POOL__MAX_SIZE": 6,
        "POOL__ACQUIRE_TIMEOUT": 60,
    }


@contextmanager
def broker(way: str, **settings: Any) -> Iterator[kernelbroker.sync.Broker]:
    """A client of a broker that launches its sandboxes in this way. The broker must end in order."""
    with (
        running_broker(**settings_of(way), **settings) as process,
        kernelbroker.sync.connect(process.url, process.token) as client,
    ):
        yield client
