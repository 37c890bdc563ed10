"""Checks of the machine: ports, limits of the process, memory, and the clock."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from pathlib import Path

from ..advice import as_root
from ..machine_memory import memory_bytes
from ..open_files import files_needed
from ..sessions.state_directory import LOCK
from .findings import Finding, error, ok, warning
from .patient import Patient

_FEWEST_FILES = 1024
_PER_SANDBOX = 64 * 1024**2
_OWN_MEMORY = 256 * 1024**2
_CLOCK_SLACK_S = 300
_TCP_LISTEN = "0A"


def ports(patient: Patient) -> list[Finding]:
    """Whether the broker can listen, or does."""
    own = patient.settings
    found: list[Finding] = []
    for key, port in (("port", own.port), ("grpc.port", own.grpc.port)):
        if not port:
            continue
        try:
            _bind(own.host, port)
        except OSError as exc:
            found += _not_bound(patient, key, port, exc)
    return found or [ok("ports", f"{own.host}, port {own.port or 'any'}")]


def _bind(host: str, port: int) -> None:
    """Bind to an address as the broker does. Raises OSError."""
    kind = socket.SOCK_STREAM
    for family, _, _, _, address in socket.getaddrinfo(
        host, port, type=kind, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            trial.bind(address)


def _not_bound(patient: Patient, key: str, port: int, exc: OSError) -> list[Finding]:
    where = f"{key}: port {port} of {patient.settings.host}"
    if exc.errno == errno.EADDRINUSE:
        if patient.running is not None and (
            key != "port" or patient.running.url.endswith(f":{port}")
        ):
            return []
        holder = _listener(port)
        remedy = f"End that program, or set {key} to a free one"
        return [error("ports", f"{where} is taken by {holder}", remedy)]
    if exc.errno == errno.EACCES:
        remedy = f"Set {key} to 1024 or more, or give the broker CAP_NET_BIND_SERVICE"
        return [error("ports", f"{where} is for root only", remedy)]
    remedy = "Set host to an address of this machine; 0.0.0.0 are all of them"
    return [error("ports", f"{where} cannot be used: {exc.strerror}", remedy)]


def _listener(port: int) -> str:
    """Who listens on a port, as far as this user can see."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _TCP_LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is another user's, or has ended
            if any(str(each.readlink()) in inodes for each in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return "another program"


def limits(patient: Patient) -> list[Finding]:
    """Whether the broker may have enough open files, processes and memory."""
    found: list[Finding] = []
    pools = [each.pool for each in patient.settings.templates.values()]
    running = patient.running
    files, of = None, "this user"
    if running is not None and running.pid is not None:
        files, of = _most_files(running.pid), f"the broker (pid {running.pid})"
    if files is None:
        files, of = _most_files(os.getpid()), "this user"
    wanted = files_needed(sum(pool.max_size for pool in pools))
    raised = (
        "Raise it: LimitNOFILE=65536 in the unit of systemd; for the shell that starts the broker: "
        f"{as_root('prlimit', '--nofile=65536:65536', '--pid', os.getppid())}"
    )
    if files is not None and files < _FEWEST_FILES:
        message = f"{of} may have only {files} open files, and the broker needs {_FEWEST_FILES}"
        found.append(error("limits", message, raised))
    elif files is not None and files < wanted:
        message = f"{of} may have {files} open files; pool.max_size may need {wanted}"
        found.append(warning("limits", message, f"{raised}. Or lower pool.max_size"))
    warm = sum(pool.min_size for pool in pools)
    memory = memory_bytes()
    if memory < _OWN_MEMORY + warm * _PER_SANDBOX:
        message = f"{memory // 1024**2} MiB of memory are too little for {warm} warm sandboxes"
        found.append(warning("limits", message, "Lower pool.min_size, or give it more memory"))
    return found or [ok("limits", f"{files} open files, {memory // 1024**2} MiB of memory")]


def _most_files(pid: int) -> int | None:
    """The most files that a process may open after it has raised its limit; None if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max open files"):
                return int(line.split()[4])
    return None


def clock(patient: Patient) -> list[Finding]:
    """Whether the clock is later than what was written with it."""
    now = time.time()
    files = [Path(__file__)]
    if patient.state_dir is not None:
        files.append(patient.state_dir / LOCK)
    for path in files:
        with contextlib.suppress(OSError):
            ahead = path.stat().st_mtime - now
            if ahead > _CLOCK_SLACK_S:
                message = f"the clock is {int(ahead)} s behind the time at which {path} was written"
                remedy = (
                    f"Set it, and keep it by NTP: {as_root('timedatectl', 'set-ntp', 'true')}. Tokens, "
                    "certificates and retentions depend on it"
                )
                return [error("clock", message, remedy)]
    return [ok("clock", f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}")]
