from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.probes import IMAGE
from tests.compose.support import COMPOSE, build, run

BROKER_IMAGE = "kernelbroker-test-broker"


@pytest.fixture(scope="session")
def broker_image() -> str:
    """The broker's image, built of this tree once."""
    return build(BROKER_IMAGE, "broker-image", f"BROKER_IMAGE={BROKER_IMAGE}")


@pytest.fixture(scope="session")
def bundle(broker_image: str) -> Iterator[Path]:
    """The offline archive, unpacked."""
    with tempfile.TemporaryDirectory(prefix="kb-bundle-", dir="/var/tmp") as directory:
        run(COMPOSE / "offline/bundle", IMAGE, broker_image, directory, timeout=600)
        (archive,) = Path(directory).glob("*.tar")
        run("sha256sum", "-c", f"{archive.name}.sha256", cwd=directory)
        run("tar", "-xf", archive, "-C", directory)
        archive.unlink()
        yield archive.with_suffix("")
