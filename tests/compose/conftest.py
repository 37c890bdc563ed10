from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compose.support import COMPOSE, build, run
from tests.support.requires import IMAGE

BROKER_IMAGE = "kernelbroker-test-broker"
DIND_IMAGE = "kernelbroker-test-dind"
WHEELS = Path("/var/tmp/kernelbroker-wheels")
"""Keeps what archives download."""


_BUILD_S = 900
"""A test may wait for an image that another process builds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(_BUILD_S))


@pytest.fixture(scope="session")
def broker_image() -> str:
    """The broker's image, built of this tree once."""
    return build(BROKER_IMAGE, "broker-image", f"BROKER_IMAGE={BROKER_IMAGE}")


@contextmanager
def unpacked(*options: str | Path) -> Iterator[Path]:
    """An archive, made with these options and unpacked."""
    names = {"IMAGE": IMAGE, "BROKER_IMAGE": BROKER_IMAGE, "DIND_IMAGE": DIND_IMAGE}
    with tempfile.TemporaryDirectory(prefix="kb-bundle-", dir="/var/tmp") as directory:
        argv = [sys.executable, COMPOSE / "offline/bundle", "--output", directory]
        run(*argv, "--wheels", WHEELS, *options, timeout=600, **names)
        (archive,) = Path(directory).glob("*.tar")
        run("sha256sum", "-c", f"{archive.name}.sha256", cwd=directory)
        run("tar", "-xf", archive, "-C", directory)
        archive.unlink()
        yield archive.with_suffix("")


@pytest.fixture(scope="session")
def bundle(broker_image: str) -> Iterator[Path]:
    """The archive for machines with an engine, unpacked. Beside it is the supplier's public key."""
    with unpacked() as directory:
        yield directory


@pytest.fixture(scope="session")
def dind_bundle(bundle: Path) -> Iterator[Path]:
    """The archive with an engine in its container, unpacked."""
    build(DIND_IMAGE, "dind-image", f"BROKER_IMAGE={BROKER_IMAGE}", f"DIND_IMAGE={DIND_IMAGE}")
    with unpacked("--form", "dind") as directory:
        yield directory


@pytest.fixture
def prefix() -> Iterator[Path]:
    """Where to install; nothing is there yet."""
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/var/tmp") as directory:
        yield Path(directory, "kb")
