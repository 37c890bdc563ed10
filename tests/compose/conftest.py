from __future__ import annotations

import pytest

from tests.compose.support import build

BROKER_IMAGE = "kernelbroker-test-broker"


@pytest.fixture(scope="session")
def broker_image() -> str:
    """The broker's image, built of this tree once."""
    return build(BROKER_IMAGE, "broker-image", f"BROKER_IMAGE={BROKER_IMAGE}")
