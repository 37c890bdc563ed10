"""Checks of the sandboxes: the engine with its images and runtimes, and a cell in each backend."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import factories
from ..advice import as_root, command, install, install_extra
from ..backends.base import Backend, BackendUnavailable, LaunchError, SandboxSpec
from ..backends.startup_check import CheckFailed, addresses_reached, run_cell
from ..config import ConfigError
from ..paths import CHECKOUT
from .findings import Finding, error, from_error, ok, warning
from .patient import Patient

if TYPE_CHECKING:
    from ..backends.engine import Engine

_CELL_TIMEOUT_S = 60.0
_OLDEST_ENGINE = 20
_IMAGE_TITLE = "kernelbroker-kernel"
_LABEL = "org.opencontainers.image"
_USER_NAMESPACES = {
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "kernel.unprivileged_userns_clone=1",
    ),
    "/proc/sys/user/max_user_namespaces": ("0", "user.max_user_namespaces=15000"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}
"""What keeps users from making user namespaces: the value of the file, and the setting that allows them."""


def engine(patient: Patient) -> list[Finding]:
    """Whether the container engine answers, and has what the templates name."""
    own = patient.settings
    names = [name for name in patient.backends if name.startswith("docker")]
    if not names:
        return []
    if importlib.util.find_spec("docker") is None:
        remedy = f"Install it: {install_extra('docker')}"
        return [error("engine", 'backend = "docker" needs a library', remedy)]
    return asyncio.run(_engine(patient, own.docker.host))


async def _engine(patient: Patient, host: str | None) -> list[Finding]:
    from ..backends.engine import Engine, EngineError

    connection = Engine(host)
    try:
        info = await connection.connect()
        found = _version(info) + _runtimes(patient, info)
        for image in _images(patient):
            found += await _image(connection, image)
    except EngineError as exc:
        where = host or os.environ.get("DOCKER_HOST", "its usual address")
        message = f"no container engine answers at {where}: {exc}"
        remedy = (
            f"Start it: {as_root('systemctl', 'start', 'docker')}. Let the broker's user use its socket, "
            "by the group docker. Or set docker.host"
        )
        return [error("engine", message, remedy)]
    finally:
        await connection.close()
    name = f"{info.get('Name', '')} {info.get('ServerVersion', '')}".strip()
    return found or [ok("engine", f"{name} has the images and runtimes")]


def _version(info: Mapping[str, Any]) -> list[Finding]:
    first = str(info.get("ServerVersion", "")).partition(".")[0]
    is_podman = "podman" in str(info.get("InitBinary", "")) or "BuildahVersion" in info
    if first.isdigit() and int(first) < _OLDEST_ENGINE and not is_podman and int(first) > 10:
        remedy = "Install Docker 20.10 or later"
        return [error("engine", f"the engine's version {info['ServerVersion']} is too old", remedy)]
    missing = [each for each in ("MemoryLimit", "PidsLimit", "CpuCfsQuota") if not info.get(each)]
    if missing:
        message = f"the engine cannot enforce all limits: it lacks {', '.join(missing)}"
        remedy = "Turn on the control groups memory, pids and cpu (docs/requirements.md)"
        return [warning("engine", message, remedy)]
    return []


def _runtimes(patient: Patient, info: Mapping[str, Any]) -> list[Finding]:
    there = info.get("Runtimes") or {}
    wanted = {patient.settings.docker.runtime} | {
        each.runtime for each in patient.settings.templates.values() if each.runtime is not None
    }
    return [
        error(
            "engine",
            f"the engine does not have the runtime {name}, but {', '.join(sorted(there))}",
            "Install it and add it to /etc/docker/daemon.json, then restart the engine; or set "
            'docker.runtime = "auto" (docs/docker.md)',
        )
        for name in sorted(wanted - {"auto"} - set(there))
    ]


def _images(patient: Patient) -> list[str]:
    own = patient.settings
    wanted = dict.fromkeys([own.docker.image])
    for name, template in own.templates.items():
        if own.backend_of(template) == "docker":
            image = factories.spec(name, template, own).image
            wanted[image or own.docker.image] = None
    return list(wanted)


async def _image(connection: Engine, image: str) -> list[Finding]:
    from ..backends.engine import Missing

    try:
        labels = await connection.image_labels(image)
    except Missing:
        return [error("engine", f"the engine does not have the image {image}", _get(image))]
    found, own = labels.get(f"{_LABEL}.version", "0"), version("kernelbroker-server")
    if labels.get(f"{_LABEL}.title") == _IMAGE_TITLE and found not in ("0", own):
        message = f"the image {image} is of version {found}, and the broker of {own}"
        return [error("engine", message, f"Get that of the broker's version. {_get(image)}")]
    return []


def _get(image: str) -> str:
    """How an engine gets an image."""
    name = image.rpartition("/")[2].partition(":")[0]
    builder = CHECKOUT / "compose/images.py"
    if name.startswith("kernelbroker-") and builder.exists():
        return f"Build it: {command(sys.executable, builder, 'build', name)}"
    pull = command("docker", "pull", image)
    return f"Build it (make image), load it from the archive, or pull it: {pull}"


def _kernel_packages(patient: Patient) -> str:
    """How the kernels' environment gets its packages."""
    python, pinned = (
        patient.settings.local.kernel_python,
        CHECKOUT / "kernel_image/requirements.txt",
    )
    if python is None or not python.exists() or not pinned.exists():
        return "Make the kernels' environment again (docs/requirements.md)"
    again = install("--require-hashes", "-r", pinned, python=python)
    return f"Install the kernels' packages again: {again}"


def sandboxes(patient: Patient) -> list[Finding]:
    """Whether a cell runs in each backend, with isolation and enforced limits.

    While a broker runs, its own health tells.
    """
    if patient.running is not None:
        return []
    return [each for name in patient.backends for each in asyncio.run(_try(patient, name))]


async def _try(patient: Patient, name: str) -> list[Finding]:
    try:
        with _own_directories(patient, name) as (data, run):
            backend = _backend(patient, name, data, run)
            try:
                await backend.start()
            except BackendUnavailable as exc:
                return [_not_started(name, exc)]
            try:
                return await _run(patient, backend, name)
            finally:
                await backend.stop()
    except ConfigError:
        return []  # the check of the settings reports it
    except OSError as exc:
        message = f"{name}: {exc.filename or 'a sandbox'}: {exc.strerror}"
        return [error("sandboxes", message, "Correct the directories first (see above)")]


async def _run(patient: Patient, backend: Backend, name: str) -> list[Finding]:
    try:
        sandbox = await backend.launch("doctor", SandboxSpec())
        try:
            await addresses_reached(run_cell, sandbox, [], _CELL_TIMEOUT_S)
        finally:
            await backend.remove(sandbox)
    except (LaunchError, CheckFailed) as exc:
        remedy = (
            _kernel_packages(patient)
            if name == "local"
            else f"Get it again. {_get(patient.settings.docker.image)}"
        )
        return [from_error("sandboxes", LaunchError(f"{name}: no cell can be run: {exc}"), remedy)]
    described = backend.describe()
    enforced: Any = described["limits"]
    weak = [key for key in ("cpus", "memory", "processes") if enforced[key] in ("none", "watchdog")]
    if weak:
        message = f"{name}: control groups do not enforce the limits of {', '.join(weak)}"
        remedy = (
            "Run the broker as root or as a service with Delegate=yes, with control groups of version 2 "
            "(docs/requirements.md)"
        )
        return [warning("sandboxes", message, remedy)]
    how = f"a cell ran with isolation {described['isolation']}"
    programs: Any = described.get("programs", {})
    used = ", ".join(f"{key} {value or 'is missing'}" for key, value in programs.items())
    return [ok("sandboxes", f"{name}: {how}{used and f'; {used}'}")]


def _backend(patient: Patient, name: str, data: Path, run: Path) -> Backend:
    own = patient.settings
    if name != "local":
        from ..backends.docker import DockerBackend
        from ..backends.docker_transport import Transport

        return DockerBackend(
            image=own.docker.image,
            host=own.docker.host,
            runtime=name.removeprefix("docker").removeprefix("-") or own.docker.runtime,
            transport=Transport(own.docker.transport),
            network=own.docker.network,
            data_dir=data,
            run_dir=run,
        )
    from ..backends.local import LocalBackend

    if own.local.kernel_python is None:
        raise ConfigError("local.kernel_python is not set")
    return LocalBackend(
        kernel_python=own.local.kernel_python,
        bwrap=own.local.bubblewrap,
        data_dir=data,
        run_dir=run,
        require_isolation=True,
    )


@contextmanager
def _own_directories(patient: Patient, name: str) -> Iterator[tuple[Path, Path]]:
    """Directories beside those of brokers, so that the trial touches nothing of theirs."""
    made: list[Path] = []
    try:
        for parent in (patient.data_dir(name), patient.run_dir(name)):
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.append(Path(tempfile.mkdtemp(prefix=".d", dir=parent)))
        yield made[0], made[1]
    finally:
        for each in made:
            shutil.rmtree(each, ignore_errors=True)


def _not_started(name: str, exc: BackendUnavailable) -> Finding:
    found = from_error("sandboxes", exc, "See docs/requirements.md")
    for path, (bad, setting) in _USER_NAMESPACES.items():
        try:
            forbids = Path(path).read_text().strip() == bad
        except OSError:
            continue
        if name == "local" and forbids and os.geteuid() != 0:
            message = f"{found.message} ({path} is {bad})"
            remedy = f"Allow them: {as_root('sysctl', setting)}. Or use containers"
            return error("sandboxes", message, remedy)
    return found
