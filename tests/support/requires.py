"""What tests need from the machine: named here, asked for once, told when a run ends.

@requires("docker", "root")     # a test, or the tests of a file by `pytestmark`
pytest.param("docker", marks=requires("docker"))
require("chromium")             # within a fixture
"""

from __future__ import annotations

import functools
import gc
import os
import platform
import re
import shutil
import socket
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import docker
import pytest
from docker.errors import DockerException
from kernelbroker_server.backends.programs import find_bubblewrap

ROOT = Path(__file__).parents[2]
_PATH = os.environ["PATH"]  # some tests change it
KERNEL_PYTHON = Path(
    os.environ.get("KERNELBROKER_TEST_KERNEL_PYTHON") or ROOT / ".venv-kernel/bin/python"
)
IMAGE = os.environ.get("KERNELBROKER_TEST_IMAGE", "kernelbroker-kernel")
CODE_IMAGE = os.environ.get("KERNELBROKER_TEST_CODE_IMAGE", "kernelbroker-code")
"""The image with git and ripgrep."""
AGENTS = Path("/var/tmp/kernelbroker-coding-agents")
CRIU = Path(os.environ.get("KERNELBROKER_TEST_CRIU", "/var/tmp/kernelbroker-criu"))
ENGINE = Path(os.environ.get("KERNELBROKER_TEST_ENGINE", "/var/tmp/kernelbroker-engine"))
HELM = Path(os.environ.get("KERNELBROKER_TEST_HELM", "/var/tmp/kernelbroker-helm"))
SEAWEEDFS = Path(os.environ.get("KERNELBROKER_TEST_SEAWEEDFS", "/var/tmp/kernelbroker-seaweedfs"))
KUBECONFIG = Path(os.environ["TEST_KUBECONFIG"]) if "TEST_KUBECONFIG" in os.environ else None
CLUSTER_ARCHIVE = (
    Path(os.environ.get("KERNELBROKER_TEST_K8S", ROOT.parent / "shared/k8s")) / "node.tar.xz"
)
COMPOSE_2 = ["docker", "compose"]


@contextmanager
def engine(host: str | None = None) -> Iterator[Any]:
    """A client of the container engine at this address, or of the one that the environment names."""
    where = {"base_url": host} if host else docker.utils.kwargs_from_env()
    api = docker.APIClient(version="auto", **where)
    try:
        yield api
    finally:
        api.close()


def _programs(*names: str) -> Callable[[], str | None]:
    """Return a check whether these programs are on the PATH."""

    def problem() -> str | None:
        lacking = [name for name in names if shutil.which(name, path=_PATH) is None]
        return f"missing on the PATH: {', '.join(lacking)}" if lacking else None

    return problem


def _in_sandboxes(name: str) -> Callable[[], str | None]:
    """Return a check for a program of the machine, or of the kernels' environment."""
    found = functools.partial(shutil.which, name, path=f"{_PATH}:{KERNEL_PYTHON.parent}")
    return lambda: None if found() else f"local sandboxes have no {name}"


def _exists(path: Path) -> Callable[[], str | None]:
    return lambda: None if os.path.lexists(path) else f"{path} is missing"


def _bubblewrap() -> str | None:
    found = find_bubblewrap()
    if found is None:
        return "there is no bubblewrap"
    done = subprocess.run(
        [found.path, "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True
    )
    return None if done.returncode == 0 else f"bubblewrap does not work here: {done.stderr}"


def _engine() -> str | None:
    problem = None
    try:
        with engine() as api:
            api.inspect_image(IMAGE)
    except DockerException as error:
        problem = f"no container engine answers that has the image {IMAGE}: {error}"
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # the socket that docker-py leaves open if no engine listens; a later test would fail
    return problem


def _code_image() -> str | None:
    if problem := missing("docker"):
        return problem
    with engine() as api:
        return None if api.images(CODE_IMAGE) else f"the engine does not have {CODE_IMAGE}"


@functools.cache
def gvisor_runtime() -> str | None:
    """A runtime of the engine's that is gVisor and takes sockets of the host."""
    if missing("docker"):
        return None
    with engine() as api:
        runtimes = api.info()["Runtimes"]
    for name, runtime in sorted(runtimes.items()):
        arguments = runtime.get("runtimeArgs") or []
        if "runsc" in runtime.get("path", "") and any("host-uds" in word for word in arguments):
            return str(name)
    return None


def _gvisor() -> str | None:
    return None if gvisor_runtime() else "the engine has no gVisor that takes sockets of the host"


def _compose_2() -> str | None:
    if problem := _programs("docker")():
        return problem
    done = subprocess.run([*COMPOSE_2, "version"], capture_output=True)
    return None if done.returncode == 0 else "docker has no Compose 2"


def _compose() -> str | None:
    return missing("compose 2") and missing("compose 1")


def _criu() -> str | None:
    return _exists(CRIU)() or missing("control groups")


def _cluster() -> str | None:
    return "no cluster: TEST_KUBECONFIG is not set" if KUBECONFIG is None else None


def _cluster_archive() -> str | None:
    found = KUBECONFIG is not None or CLUSTER_ARCHIVE.exists()
    return None if found else f"no cluster, and no archive of one: {CLUSTER_ARCHIVE}"


def _postgresql() -> str | None:
    found = any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return None if found else _programs("initdb")()


def _root() -> str | None:
    return None if os.geteuid() == 0 else "not root"


def _control_groups() -> str | None:
    return None if os.access("/sys/fs/cgroup", os.W_OK) else "/sys/fs/cgroup is not writable"


def _network_namespaces() -> str | None:
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip()


def _low_ports() -> str | None:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", 80))
        except PermissionError:
            return "ports below 1024 are not for this user"
        except OSError:
            pass  # another server has it, which may be
    return None


def _x86_64() -> str | None:
    machine = platform.machine()
    return None if machine == "x86_64" else f"the machine is {machine}"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that not every machine has.

    Attributes:
        problem: says why it is not here; None if it is.
        install: how to get it: a command, or a sentence.
    """

    problem: Callable[[], str | None]
    install: str


NEEDS = {
    "bubblewrap": Need(_bubblewrap, "apt-get install bubblewrap, with user namespaces or as root"),
    "the kernels' environment": Need(_exists(KERNEL_PYTHON), "make setup"),
    "root": Need(_root, "run as root"),
    "control groups": Need(_control_groups, "make /sys/fs/cgroup writable, and run as root"),
    "an index of packages": Need(lambda: None, "let pip reach an index"),
    "network namespaces": Need(_network_namespaces, "run as root"),
    "low ports": Need(_low_ports, "run as root"),
    "x86_64": Need(_x86_64, "run on such a machine"),
    "git": Need(_programs("git"), "apt-get install git"),
    "libseccomp": Need(
        lambda: None if find_library("seccomp") else "there is no libseccomp",
        "apt-get install libseccomp2",
    ),
    "openssl": Need(_programs("openssl"), "apt-get install openssl"),
    "ip": Need(_programs("ip"), "apt-get install iproute2"),
    "npm": Need(_programs("npm", "node"), "apt-get install npm"),
    "node": Need(_in_sandboxes("node"), "make setup, or apt-get install nodejs"),
    "ripgrep": Need(_in_sandboxes("rg"), "make setup, or apt-get install ripgrep"),
    "chromium": Need(_programs("chromium"), "apt-get install chromium"),
    "postgresql": Need(_postgresql, "apt-get install postgresql"),
    "prometheus": Need(_programs("promtool"), "apt-get install prometheus"),
    "systemd": Need(_programs("systemd-analyze"), "apt-get install systemd"),
    "docker": Need(_engine, "apt-get install docker.io, start dockerd, make image"),
    "the image for projects": Need(_code_image, "make code-image"),
    "gvisor": Need(_gvisor, "apt-get install runsc, and the engine's configuration in .ci/run"),
    "dockerd": Need(_programs("dockerd", "crun"), "apt-get install docker.io crun"),
    "podman": Need(
        _programs("podman", "crun", "catatonit"), "apt-get install podman crun catatonit"
    ),
    "compose": Need(_compose, "apt-get install docker-compose"),
    "compose 1": Need(_programs("docker-compose"), "apt-get install docker-compose"),
    "compose 2": Need(_compose_2, "tests/support/get_compose"),
    "a second engine": Need(_exists(ENGINE), f"tests/support/get_engine {ENGINE}"),
    "criu": Need(_criu, f"tests/support/get_criu {CRIU}"),
    "seaweedfs": Need(_exists(SEAWEEDFS / "weed"), f"tests/support/get_seaweedfs {SEAWEEDFS}"),
    "helm": Need(_exists(HELM / "helm"), f"tests/support/get_helm {HELM}"),
    "cluster": Need(_cluster, "set TEST_KUBECONFIG to what tests/support/get_cluster prints"),
    "the cluster's archive": Need(_cluster_archive, "set KERNELBROKER_TEST_K8S, see get_cluster"),
    "coding agents": Need(
        _exists(AGENTS / "installed.json"), f"tests/support/coding_agents/get {AGENTS}"
    ),
}


@functools.cache
def missing(name: str) -> str | None:
    """Why the machine does not have this; None if it has."""
    return NEEDS[name].problem()


def requires(*names: str) -> pytest.MarkDecorator:
    """Return a mark by which a test is skipped where one of these is missing."""
    unknown = set(names) - set(NEEDS)
    assert not unknown, f"tests/support/requires.py does not know {unknown}"
    return pytest.mark.requires(*names)


def require(*names: str) -> None:
    """Skip the test that runs if one of these is missing."""
    for name in names:
        if problem := missing(name):
            lacks(name, problem)


def lacks(name: str, problem: str) -> NoReturn:
    """Skip the test that runs, which has seen that this is missing."""
    assert name in NEEDS
    pytest.skip(f"needs {name}: {problem}")


_REASON = re.compile(r"needs ([^:]+): ")


def table(skipped: Iterable[Any]) -> Iterator[str]:
    """Return lines about what these reports of skipped tests needed, and how to get it."""
    found: Counter[str] = Counter()
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        name = _REASON.search(reason)
        found[name[1] if name else reason.removeprefix("Skipped: ")] += 1
    for name, count in found.most_common():
        yield f"{count:6}  {name:24}  {NEEDS[name].install if name in NEEDS else ''}".rstrip()
