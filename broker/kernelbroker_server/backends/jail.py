"""Builds the bubblewrap command of a sandbox. Does no I/O; `bubblewrap.py` runs the command.

A jail has its own namespaces. It contains a read-only system, one Python environment and the workspace. The
network is a loopback interface. Outside the workspace only tmpfs of a limited size is writable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kernelbroker_kernel.contract import PROJECT, WORKSPACE, WORKSPACE_PATHS

from .base import Limits, SandboxSpec
from .host import Host
from .host_project import HostProject
from .sandbox_layout import (
    EGRESS_SOCKET,
    ENVIRONMENT,
    HOME,
    LIBRARY,
    TMP,
    UID,
    WHEELS,
    environment,
    python_environment,
)

ETC = {
    "passwd": f"root:x:0:0:root:/:/bin/false\nsandbox:x:{UID}:{UID}:sandbox:{HOME}:/bin/sh\n",
    "group": f"root:x:0:\nsandbox:x:{UID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\n",
    "resolv.conf": "",
}
"""Files of /etc, the same in every jail. The host's files would reveal users and hosts."""

_HOST_ETC = (
    "alternatives",
    "fonts",
    "ld.so.cache",
    "localtime",
    "mime.types",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""Entries of the host's /etc that programs need. Missing ones are left out."""


SHARED = Path(WORKSPACE) / "shared"


class Descriptors(NamedTuple):
    """The descriptors that bubblewrap inherits. It waits until it can read a byte from `gate`."""

    status: int
    gate: int
    info: int | None
    seccomp: int | None


HANDOVER = Path("/run/kernelbroker")
"""The directory of the socket over which the gateway of a checkpoint jail gets its connections."""
KERNEL_FEATURES = Path("/run/criu.kdat")
"""What CRIU knows of the kernel. It looks for it there."""


class CheckpointPaths(NamedTuple):
    """What only the jails of processes that can be saved have, as paths of the host."""

    handover: Path
    kernel_features: Path | None


def python_inside(host: Host) -> Path:
    return host.python if host.environment is None else ENVIRONMENT / "bin" / host.python.name


def jail_argv(
    host: Host,
    spec: SandboxSpec,
    *,
    etc: Path,
    workspace: Path,
    egress_socket: Path | None = None,
    project: Path | None = None,
    checkpoint: CheckpointPaths | None = None,
    host_uid: int | None = None,
    program: Sequence[str],
    descriptors: Descriptors,
) -> list[str]:
    """The command and its arguments.

    Args:
        etc: a directory with the files of `ETC`.
        egress_socket: the socket of the egress proxy, if the sandbox has one.
        project: where the spec's project is mounted for this sandbox; None for its own path.
        checkpoint: for a jail without a user namespace, whose processes can be saved.
        host_uid: the user of its processes.
        program: the command line of the program in the jail, which is mostly the gateway.
    """
    assert host.bwrap is not None
    return [
        host.bwrap,
        *_boundaries(host, descriptors, spec.orphan_grace > 0, checkpoint is not None),
        *_system(host, etc),
        *_memory(spec.limits),
        *_python(host),
        *_workspace(workspace, spec.shared_data),
        *([] if spec.project is None else _project(project or spec.project.path, spec.project)),
        *([] if spec.wheels is None else _read_only(spec.wheels, WHEELS)),
        *([] if egress_socket is None else _read_only(egress_socket, EGRESS_SOCKET)),
        *([] if checkpoint is None else _checkpoint(checkpoint)),
        # The root is a tmpfs without a size limit, and a jail of an ordinary user owns it.
        *("--remount-ro", "/", "--remount-ro", "/dev"),
        *_variables(host, spec),
        *("--chdir", WORKSPACE),
        "--",
        *_become_user(host, UID if host_uid is None else host_uid),
        *program,
    ]


def server_argv(
    host: Host,
    spec: SandboxSpec,
    *,
    etc: Path,
    program: Sequence[str],
    seccomp: int | None,
) -> list[str]:
    """The command of a fork server: it sees what the sandboxes of the spec see, without a workspace.

    It stays in the broker's pid namespace, where it starts gateways and reports their ends. If the broker
    is an ordinary user, it gets a user namespace, which the sandboxes' are made in. It has no capabilities,
    no network, and can write nowhere except to its tmpfs.
    """
    assert host.bwrap is not None
    boundaries = ["--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    boundaries += ["--new-session", "--cap-drop", "ALL"]
    if not host.root:
        boundaries += ["--unshare-user"]
    if seccomp is not None:
        boundaries += ["--seccomp", str(seccomp)]
    return [
        host.bwrap,
        *boundaries,
        *_system(host, etc, proc=("--ro-bind", "/proc", "/proc")),
        *_memory(spec.limits),
        *_python(host),
        *("--perms", "0755", "--dir", WORKSPACE, "--symlink", WORKSPACE, "/workspace"),
        *([] if spec.shared_data is None else _read_only(spec.shared_data, SHARED)),
        *([] if spec.wheels is None else _read_only(spec.wheels, WHEELS)),
        *("--remount-ro", "/", "--remount-ro", "/dev"),
        *_variables(host, spec),
        *("--chdir", "/", "--", *program),
    ]


def inside(host: Host, user_namespace: int) -> list[str]:
    """The beginning of a command that runs in a user namespace, given as an inherited descriptor."""
    assert host.nsenter is not None
    return [host.nsenter, f"--user=/proc/self/fd/{user_namespace}", "--preserve-credentials", "--"]


def _boundaries(
    host: Host, descriptors: Descriptors, outlives: bool, shares_users: bool
) -> list[str]:
    if shares_users:
        args = [f"--unshare-{kind}" for kind in ("ipc", "pid", "net", "uts", "cgroup-try")]
    else:
        args = ["--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID)]
    args += ["--hostname", "sandbox", "--new-session", "--cap-drop", "ALL"]
    args += [] if outlives else ["--die-with-parent"]
    args += ["--json-status-fd", str(descriptors.status)]
    if host.root and not shares_users:
        # The broker writes the uid map, so that the sandbox runs as another user of the host. Bubblewrap
        # stays root of the namespace, and `_become_user` changes the user.
        args += ["--userns-block-fd", str(descriptors.gate), "--info-fd", str(descriptors.info)]
    else:
        args += ["--block-fd", str(descriptors.gate)]
    if host.root:
        # DAC_READ_SEARCH is for --chdir.
        for capability in ("SETUID", "SETGID", "SETPCAP", "DAC_READ_SEARCH"):
            args += ["--cap-add", f"CAP_{capability}"]
    else:
        # It cannot be combined with --userns-block-fd. As root only the seccomp filter denies user
        # namespaces.
        args += ["--disable-userns"]
    if descriptors.seccomp is not None:
        args += ["--seccomp", str(descriptors.seccomp)]
    return args


def _become_user(host: Host, uid: int) -> list[str]:
    if not host.root:
        return []
    assert host.setpriv is not None
    user = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    return [host.setpriv, *user, "--inh-caps=-all", "--bounding-set=-all", "--"]


def _system(host: Host, etc: Path, proc: tuple[str, ...] = ("--proc", "/proc")) -> list[str]:
    args = ["--ro-bind", "/usr", "/usr"]
    for path, target in host.system:
        args += ["--ro-bind", path, path] if target is None else ["--symlink", target, path]
    for name in _HOST_ETC:
        path = f"/etc/{name}"
        args += [*_parents(Path(path)), "--ro-bind-try", path, path]
    for name in ETC:
        args += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    return [*args, *proc, "--dev", "/dev"]


def _memory(limits: Limits) -> list[str]:
    """The tmpfs directories. Their content also counts towards the sandbox's memory."""
    args = [*_parents(HOME)]
    for path in (TMP, HOME, Path("/dev/shm")):
        args += ["--perms", "1777", "--size", str(limits.tmp_size), "--tmpfs", str(path)]
    return args


def _python(host: Host) -> list[str]:
    args = []
    for base in host.bases:
        args += _read_only(base, base)
    if host.environment is not None:
        args += _read_only(host.environment, ENVIRONMENT)
        if not any(map(host.environment.is_relative_to, (Path("/usr"), *host.bases))):
            # Scripts such as pip contain the host's path of the interpreter.
            args += [
                *_parents(host.environment),
                "--symlink",
                str(ENVIRONMENT),
                str(host.environment),
            ]
    return [*args, *_read_only(host.package, LIBRARY / host.package.name)]


def _workspace(workspace: Path, shared_data: Path | None) -> list[str]:
    args = []
    for path in WORKSPACE_PATHS:
        args += ["--bind", str(workspace), path]
        if shared_data is not None:
            args += ["--ro-bind", str(shared_data), f"{path}/{SHARED.name}"]
    return args


def _project(source: Path, project: HostProject) -> list[str]:
    how = "--ro-bind" if project.read_only else "--bind"
    return [each for path in WORKSPACE_PATHS for each in (how, str(source), f"{path}/{PROJECT}")]


def _checkpoint(paths: CheckpointPaths) -> list[str]:
    args = _read_only(paths.handover, HANDOVER)
    if paths.kernel_features is not None:
        args += _read_only(paths.kernel_features, KERNEL_FEATURES)
    return args


def variables(host: Host, spec: SandboxSpec) -> dict[str, str]:
    """The environment of the gateway."""
    return python_environment(python_inside(host), LIBRARY) | environment(
        spec, home=HOME, tmp=TMP, workspace=Path(WORKSPACE)
    )


def _variables(host: Host, spec: SandboxSpec) -> Iterable[str]:
    yield "--clearenv"
    for name, value in variables(host, spec).items():
        yield from ("--setenv", name, value)


def _read_only(source: Path, target: Path) -> list[str]:
    return [*_parents(target), "--ro-bind", str(source), str(target)]


def _parents(path: Path) -> list[str]:
    """Make the parent directories of `path` with mode 0755. Bubblewrap would make them with 0700."""
    args = []
    for parent in reversed(path.parents[:-1]):
        args += ["--perms", "0755", "--dir", str(parent)]
    return args
