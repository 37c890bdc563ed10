"""The jail of one sandbox as a bubblewrap command. Pure: values in, argv out.

Inside there is a read-only system, one Python environment, the workspace, and nothing else: all
namespaces are its own, the network is its own loopback, the root is read-only, and what can be
written outside the workspace is memory with a bound. `bubblewrap.py` runs what is built here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kernelbroker_kernel.contract import WORKSPACE

from .base import Limits, SandboxSpec
from .host import Host
from .inside import (
    ENVIRONMENT,
    HOME,
    LIBRARY,
    TMP,
    UID,
    WAY_OUT,
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
"""Files of /etc that are the same in every jail; the host's own would tell of the host."""

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
"""What programs need of the host's /etc, where it is there."""


class Descriptors(NamedTuple):
    """What bubblewrap inherits; it waits at the `gate` until a byte comes."""

    status: int
    gate: int
    info: int | None
    seccomp: int | None


def python_inside(host: Host) -> Path:
    return host.python if host.environment is None else ENVIRONMENT / "bin" / host.python.name


def jail_argv(
    host: Host,
    spec: SandboxSpec,
    *,
    etc: Path,
    workspace: Path,
    way_out: Path | None = None,
    gateway: Sequence[str],
    descriptors: Descriptors,
) -> list[str]:
    """The whole command.

    `etc` is a directory that holds the files of `ETC`; `way_out` the proxy's socket, if there is one.
    """
    assert host.bwrap is not None
    return [
        host.bwrap,
        *_boundaries(host, descriptors),
        *_system(host, etc),
        *_memory(spec.limits),
        *_python(host),
        *_workspace(workspace, spec.shared_data),
        *([] if spec.wheels is None else _read_only(spec.wheels, WHEELS)),
        *([] if way_out is None else _read_only(way_out, WAY_OUT)),
        # The tree itself is a tmpfs without a bound, and an ordinary user's jail would own it.
        *("--remount-ro", "/", "--remount-ro", "/dev"),
        *_variables(host, spec),
        *("--chdir", WORKSPACE),
        "--",
        *_become_user(host),
        *gateway,
    ]


def _boundaries(host: Host, descriptors: Descriptors) -> list[str]:
    args = ["--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID)]
    args += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    args += ["--json-status-fd", str(descriptors.status)]
    if host.root:
        # The broker writes the uid map, so that the user inside is one of its own outside, too.
        # Bubblewrap then works as the namespace's root, and leaves the change to `_become_user`.
        args += ["--userns-block-fd", str(descriptors.gate), "--info-fd", str(descriptors.info)]
        for capability in ("SETUID", "SETGID", "SETPCAP", "DAC_READ_SEARCH"):  # the last for chdir
            args += ["--cap-add", f"CAP_{capability}"]
    else:
        # Not to be had with --userns-block-fd; the seccomp filter refuses such namespaces as well.
        args += ["--block-fd", str(descriptors.gate), "--disable-userns"]
    if descriptors.seccomp is not None:
        args += ["--seccomp", str(descriptors.seccomp)]
    return args


def _become_user(host: Host) -> list[str]:
    if not host.root:
        return []
    assert host.setpriv is not None
    user = ["--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
    return [host.setpriv, *user, "--inh-caps=-all", "--bounding-set=-all", "--"]


def _system(host: Host, etc: Path) -> list[str]:
    args = ["--ro-bind", "/usr", "/usr"]
    for path, target in host.system:
        args += ["--ro-bind", path, path] if target is None else ["--symlink", target, path]
    for name in _HOST_ETC:
        path = f"/etc/{name}"
        args += [*_parents(Path(path)), "--ro-bind-try", path, path]
    for name in ETC:
        args += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    return [*args, "--proc", "/proc", "--dev", "/dev"]


def _memory(limits: Limits) -> list[str]:
    """What can be written outside the workspace. It counts as the sandbox's memory, too."""
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
            # Its scripts (pip and the like) name the interpreter by the path on the host.
            args += [
                *_parents(host.environment),
                "--symlink",
                str(ENVIRONMENT),
                str(host.environment),
            ]
    return [*args, *_read_only(host.package, LIBRARY / host.package.name)]


def _workspace(workspace: Path, shared_data: Path | None) -> list[str]:
    args = ["--bind", str(workspace), WORKSPACE, "--symlink", WORKSPACE, "/workspace"]
    if shared_data is not None:
        args += ["--ro-bind", str(shared_data), f"{WORKSPACE}/shared"]
    return args


def _variables(host: Host, spec: SandboxSpec) -> Iterable[str]:
    yield "--clearenv"
    variables = python_environment(python_inside(host), LIBRARY) | environment(
        spec, home=HOME, tmp=TMP, workspace=Path(WORKSPACE)
    )
    for name, value in variables.items():
        yield from ("--setenv", name, value)


def _read_only(source: Path, target: Path) -> list[str]:
    return [*_parents(target), "--ro-bind", str(source), str(target)]


def _parents(path: Path) -> list[str]:
    """Make the directories above `path`, open to all: bubblewrap would make them 0700."""
    args = []
    for parent in reversed(path.parents[:-1]):
        args += ["--perms", "0755", "--dir", str(parent)]
    return args
