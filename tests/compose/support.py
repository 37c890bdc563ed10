"""The broker in containers: the images for tests, and the engine's report of remaining objects."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kernelbroker
import pytest
from docker.errors import DockerException

from tests.support.requires import COMPOSE_2, engine, requires

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
DEADLINE_S = 300.0
"""For what should take a few seconds: a busy machine is no failure."""

containers = [pytest.mark.sandbox, requires("docker", "root")]


def run(
    *argv: str | Path,
    timeout: float = DEADLINE_S,
    cwd: str | Path = ROOT,
    fails: bool = False,
    **environ: str | Path,
) -> str:
    """Run a program to its end; returns its output. With `fails` it must fail."""
    done = subprocess.run(
        list(map(str, argv)),
        env=os.environ | {key: str(value) for key, value in environ.items()},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    ended = f"{argv} ended with {done.returncode}:\n{done.stdout}"
    assert (done.returncode != 0) == fails, ended
    return done.stdout


def compose_argv() -> list[str]:
    return ["docker-compose"] if shutil.which("docker-compose") else COMPOSE_2


def build(name: str, target: str, *variables: str) -> str:
    """Build an image by its target of the Makefile; layers that stand are used again.

    One process builds at a time, so that the others find its layers.
    """
    settings = [f"BASE_IMAGE={base_image()}", "BUILD_OPTIONS=--network host", *variables]
    with (Path(tempfile.gettempdir()) / "kernelbroker-test-build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("make", target, *settings, timeout=600)
    return name


def base_image() -> str:
    """The base of the images: the one that CI names, else one made without a registry."""
    name = os.environ.get("BASE_IMAGE", "kernelbroker-test-base")
    with engine() as api:
        try:
            api.inspect_image(name)
        except DockerException:
            return "python:3.12-slim-bookworm"
    return name


def engine_socket() -> Path:
    return Path(
        os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    )


def until(
    condition: Callable[[], Any], what: Callable[[], str] | str, deadline: float = DEADLINE_S
) -> Any:
    """Poll a condition."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        assert time.monotonic() < end, (
            f"not within {deadline:g} s: {what() if callable(what) else what}"
        )
        time.sleep(0.1)
    return value


def is_ready(url: str) -> bool:
    """Whether a broker has a sandbox for the next session."""
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=5):
            return True
    except OSError:
        return False


def healthy(container: str) -> bool:
    with engine() as api:
        state: Mapping[str, Any] = api.inspect_container(container)["State"]
    assert state["Status"] != "exited", run("docker", "logs", "--tail", "50", container)
    return bool(state["Health"]["Status"] == "healthy")


async def use(url: str, token: str) -> None:
    """What a client does: text, a table, a plot, a failure, files that outlive a restart."""
    async with (
        kernelbroker.connect(url, token) as broker,
        broker.session() as session,
    ):
        hello = await session.run("x = 41\nprint('hello')", timeout=60)
        assert (hello.success, hello.stdout) == (True, "hello\n")
        source = "import pandas as pd; df = pd.DataFrame({'a': [1, 2]}); df.to_csv('t.csv')"
        table = await session.run(source, result_var="df", timeout=60)
        assert table.dataframe is not None
        assert table.dataframe.shape == (2, 1)
        plot = await session.run(
            "import matplotlib.pyplot as plt; plt.plot([1, x]); plt.show()", timeout=60
        )
        assert plot.images[0].data.startswith(b"\x89PNG")
        await session.restart()
        fresh = await session.run("x")
        assert fresh.error == "NameError: name 'x' is not defined"
        kept = await session.run("print(open('/data/t.csv').read())")
        assert kept.stdout == ",a\n0,1\n1,2\n\n"
