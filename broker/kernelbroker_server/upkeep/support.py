"""Collects what helps to find a fault into an archive, without secrets, code or output.

Each text goes through the `Redactor`. The stored state, workspaces, the audit log and the token file are
not read.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distributions, version
from pathlib import Path

from ..config import ConfigError
from ..config_file import load
from ..doctor.checks import examine
from ..doctor.findings import as_json, as_text, error
from ..doctor.patient import Patient
from .redaction import Redactor, settings_without_secrets

_LOG_BYTES = 5 * 1024**2
_PROC = (
    "cpuinfo",
    "meminfo",
    "loadavg",
    "mounts",
    "uptime",
    "self/cgroup",
    "self/limits",
    "sys/kernel/osrelease",
    "sys/user/max_user_namespaces",
    "pressure/memory",
)
_PROGRAMS = ("bwrap", "docker", "podman", "runsc", "setpriv", "criu", "chromium", "systemctl")
_LIST = 2000
"""Entries of a listed directory."""


def write_support_archive(target: Path, config: Path | None) -> list[str]:
    """Write the archive, compressed. Returns the names of its files.

    Raises:
        OSError
    """
    if target.exists():
        raise FileExistsError(None, "it exists already; name another file", str(target))
    texts: dict[str, str] = {}
    patient: Patient | None = None
    try:
        settings = load(config)
    except ConfigError as exc:
        redactor = Redactor(None)
        texts["settings.txt"] = f"They cannot be used: {exc}\n"
    else:
        redactor = Redactor(settings)
        patient = Patient(settings, str(config or "the environment"))
        texts["settings.json"] = json.dumps(settings_without_secrets(settings), indent=2)
    for name, collect in _parts(patient).items():
        try:
            texts[name] = collect()
        except Exception as exc:  # the other parts may tell why
            texts[name] = f"not collected: {type(exc).__name__}: {exc}\n"
    _write(target, {name: redactor.text(text) for name, text in texts.items()})
    return sorted(texts)


def _parts(patient: Patient | None) -> Mapping[str, Callable[[], str]]:
    parts: dict[str, Callable[[], str]] = {
        "versions.txt": _versions,
        "machine.txt": _machine,
        "environment.txt": _environment,
    }
    if patient is None:
        return parts

    def doctor() -> str:
        found = examine(patient) or [error("doctor", "nothing was checked", "report this")]
        return f"{as_text(found)}\n\n{as_json(found, version('kernelbroker-server'))}\n"

    def health() -> str:
        return json.dumps(None if patient.running is None else patient.running.health, indent=2)

    parts |= {
        "doctor.txt": doctor,
        "health.json": health,
        "directories.txt": lambda: "\n".join(_directories(patient)),
    }
    if (log := patient.settings.log_file) is not None:
        parts["broker.log"] = lambda: _tail(log)
    return parts


def _versions() -> str:
    installed = sorted({f"{each.name} {each.version}" for each in distributions()})
    return "\n".join([sys.version, platform.platform(), *installed, ""])


def _machine() -> str:
    parts = []
    for name in _PROC:
        with contextlib.suppress(OSError):
            parts.append(f"== /proc/{name}\n{Path('/proc', name).read_text(errors='replace')}")
    with contextlib.suppress(OSError):
        parts.append(f"== /etc/os-release\n{Path('/etc/os-release').read_text()}")
    found = [f"{name}: {shutil.which(name)}" for name in _PROGRAMS]
    return "\n".join([*parts, "== programs", *found, f"== uid {os.getuid()}", time.ctime(), ""])


def _environment() -> str:
    """The names of our variables. Their values are among the settings."""
    names = sorted(name for name in os.environ if name.startswith(("KERNELBROKER_", "DOCKER_")))
    return "\n".join([*names, ""])


def _directories(patient: Patient) -> Iterator[str]:
    own = [
        each
        for name in patient.backends
        for each in (patient.data_dir(name), patient.run_dir(name))
    ]
    if patient.state_dir is not None:
        own.append(patient.state_dir)
    for path in dict.fromkeys(own):
        yield f"== {path}"
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(path)
            yield f"{usage.free:,} of {usage.total:,} bytes are free"
            for each in sorted(path.iterdir())[:_LIST]:
                status = each.lstat()
                yield f"{status.st_mode:o} {status.st_uid} {status.st_size:>12} {each.name}"


def _tail(path: Path) -> str:
    """The end of the log. It has no code, output, tokens or values of variables."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return file.read().decode(errors="replace")


def _write(target: Path, texts: Mapping[str, str]) -> None:
    with tempfile.NamedTemporaryFile(  # mode 0600
        dir=target.absolute().parent, prefix=f".{target.name}.", delete=False
    ) as file:
        try:
            with (
                gzip.GzipFile("", "wb", fileobj=file) as stream,
                tarfile.open(fileobj=stream, mode="w|") as archive,
            ):
                for name, text in sorted(texts.items()):
                    content = text.encode(errors="replace")
                    info = tarfile.TarInfo(f"kernelbroker-support/{name}")
                    info.size, info.mode, info.mtime = len(content), 0o600, int(time.time())
                    archive.addfile(info, io.BytesIO(content))
            file.flush()
            Path(file.name).rename(target)
        except BaseException:
            Path(file.name).unlink()
            raise
