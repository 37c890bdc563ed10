"""The bubblewrap command of a jail."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kernelbroker_server.backends.base import Limits, Network, SandboxSpec
from kernelbroker_server.backends.host import Host
from kernelbroker_server.backends.jail import CheckpointPaths, Descriptors, jail_argv, python_inside
from kernelbroker_server.backends.programs import Program

HOST = Host(
    python=Path("/srv/app/venv/bin/python"),
    environment=Path("/srv/app/venv"),
    bases=(Path("/root/.pyenv/versions/3.11.7"),),
    package=Path("/srv/app/kernelbroker_kernel"),
    system=(("/bin", "usr/bin"), ("/lib64", None)),
    bubblewrap=Program("/usr/bin/bwrap", "0.8.0", "machine"),
    setpriv="/usr/bin/setpriv",
    root=True,
)
SPEC = SandboxSpec(limits=Limits(cpus=2.5, tmp_size=4096), shared_data=Path("/srv/shared"))


def argv(
    host: Host = HOST, spec: SandboxSpec = SPEC, egress_socket: Path | None = None
) -> list[str]:
    return jail_argv(
        host,
        spec,
        etc=Path("/run/kb/etc"),
        workspace=Path("/var/kb/one/workspace"),
        egress_socket=egress_socket,
        program=["python", "-m", "gateway"],
        descriptors=Descriptors(status=5, gate=6, info=7, seccomp=8),
    )


def index(args: list[str], *run: str) -> int:
    """The position of these arguments in a row."""
    return next(i for i in range(len(args)) if tuple(args[i : i + len(run)]) == run)


def has(args: list[str], *run: str) -> bool:
    return any(tuple(args[i : i + len(run)]) == run for i in range(len(args)))


def test_jail_shares_nothing_with_the_host() -> None:
    """A jail shares no namespace, environment variable or capability with the host."""
    args = argv()
    for flag in ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"):
        assert flag in args
    assert has(args, "--cap-drop", "ALL")
    assert has(args, "--seccomp", "8")
    assert "--clearenv" in args
    assert "--share-net" not in args
    assert not {"--dev-bind", "--bind-try", "--dev-bind-try"} & set(args)


def test_a_jail_for_checkpoints_shares_only_the_users() -> None:
    """It has all namespaces but that of users, its own user, and only read-only mounts more."""
    paths = CheckpointPaths(handover=Path("/run/kb/one.give"), kernel_features=Path("/run/kb/kdat"))
    args = jail_argv(
        HOST,
        SPEC,
        etc=Path("/run/kb/etc"),
        workspace=Path("/var/kb/one/workspace"),
        checkpoint=paths,
        host_uid=200_000,
        program=["python", "-m", "gateway"],
        descriptors=Descriptors(status=5, gate=6, info=None, seccomp=8),
    )
    for kind in ("ipc", "pid", "net", "uts", "cgroup-try"):
        assert f"--unshare-{kind}" in args
    assert not {"--unshare-all", "--unshare-user", "--uid", "--userns-block-fd"} & set(args)
    assert has(args, "--block-fd", "6")
    assert has(args, "--cap-drop", "ALL")
    assert has(args, "--seccomp", "8")
    assert has(args, "--reuid", "200000", "--regid", "200000", "--clear-groups")
    assert has(args, "--ro-bind", "/run/kb/one.give", "/run/kernelbroker")
    assert has(args, "--ro-bind", "/run/kb/kdat", "/run/criu.kdat")
    assert args.count("--bind") == 3


def test_only_the_workspace_is_writable() -> None:
    """Only the workspace's binds are writable. The root and /dev become read-only after all mounts."""
    args = argv()
    assert args.count("--bind") == 3
    assert has(args, "--bind", "/var/kb/one/workspace", "/data")
    assert has(args, "--bind", "/var/kb/one/workspace", "/home/user")
    assert has(args, "--bind", "/var/kb/one/workspace", "/workspace")
    assert has(args, "--ro-bind", "/srv/shared", "/data/shared")
    assert index(args, "--remount-ro", "/") > index(args, "--bind")
    assert index(args, "--remount-ro", "/dev") > index(args, "--tmpfs", "/dev/shm")


def test_our_own_path_comes_first() -> None:
    """An operator's PYTHONPATH follows the gateway's own. Other variables override the defaults."""
    args = argv(spec=SandboxSpec(env={"PYTHONPATH": "/mine", "PATH": "/bin"}))
    assert has(args, "--setenv", "PYTHONPATH", "/opt/kernelbroker/lib:/mine")
    assert has(args, "--setenv", "PATH", "/bin")
    nothing = argv(spec=SandboxSpec(env={"PYTHONPATH": ""}))
    assert has(nothing, "--setenv", "PYTHONPATH", "/opt/kernelbroker/lib")


def test_allow_list_binds_the_proxy_socket() -> None:
    """With an allow list the proxy's socket is bound read-only, and the network is still unshared."""
    args = argv(spec=SandboxSpec(network=Network.ALLOWLIST), egress_socket=Path("/run/kb/one.out"))
    assert has(args, "--ro-bind", "/run/kb/one.out", "/run/kernelbroker.egress")
    assert has(args, "--setenv", "https_proxy", "http://127.0.0.1:3128")
    assert "--share-net" not in args
    assert "https_proxy" not in argv()


def test_memory_backed_directories_are_bounded() -> None:
    """Each tmpfs has the size limit."""
    args = argv()
    for path in ("/tmp", "/home/sandbox", "/dev/shm"):
        assert has(args, "--size", "4096", "--tmpfs", path)


def test_as_root_the_last_step_gives_up_root() -> None:
    """A jail of root waits for its uid map, and becomes an ordinary user just before the gateway starts."""
    args = argv()
    assert has(args, "--userns-block-fd", "6", "--info-fd", "7")
    command = args[args.index("--") + 1 :]
    assert command[0] == "/usr/bin/setpriv"
    assert command[-3:] == ["python", "-m", "gateway"]
    assert {"--bounding-set=-all", "--inh-caps=-all", "--clear-groups"} <= set(command)


def test_as_an_ordinary_user_no_capability_is_kept() -> None:
    """A jail of an ordinary user has no capabilities and forbids further user namespaces."""
    args = argv(dataclasses.replace(HOST, root=False))
    assert "--cap-add" not in args
    assert "--disable-userns" in args
    assert has(args, "--block-fd", "6")
    assert args[args.index("--") + 1 :] == ["python", "-m", "gateway"]


def test_python_is_where_its_environment_expects_it() -> None:
    """The environment has a fixed path, and its base Python has the same path as on the host."""
    args = argv()
    base = "/root/.pyenv/versions/3.11.7"
    assert has(args, "--ro-bind", base, base)
    assert index(args, "--perms", "0755", "--dir", "/root") < index(args, "--ro-bind", base)
    assert has(args, "--ro-bind", "/srv/app/venv", "/opt/kernelbroker/env")
    assert has(args, "--symlink", "/opt/kernelbroker/env", "/srv/app/venv")
    assert python_inside(HOST) == Path("/opt/kernelbroker/env/bin/python")


def test_an_environment_inside_its_python_needs_no_link() -> None:
    """An environment below a visible directory of the host gets no symbolic link."""
    inside = HOST.bases[0] / "envs/kernels"
    args = argv(dataclasses.replace(HOST, environment=inside))
    assert not has(args, "--symlink", "/opt/kernelbroker/env")


def test_a_system_python_needs_nothing_of_its_own() -> None:
    """A Python in /usr without an environment is run by its own path."""
    system = dataclasses.replace(HOST, python=Path("/usr/bin/python3"), environment=None, bases=())
    assert python_inside(system) == Path("/usr/bin/python3")
    assert "/opt/kernelbroker/env" not in argv(system)


def test_environment_variables() -> None:
    """The variables are set explicitly. The number of threads follows the cores, at least one."""
    args = argv()
    assert has(args, "--setenv", "OMP_NUM_THREADS", "2")
    assert has(args, "--setenv", "PYTHONPATH", "/opt/kernelbroker/lib")
    assert has(args, "--setenv", "KERNELBROKER_WORKSPACE", "/data")
    small = argv(spec=SandboxSpec(limits=Limits(cpus=0.25)))
    assert has(small, "--setenv", "OMP_NUM_THREADS", "1")


def test_system_directories_are_as_the_host_has_them() -> None:
    """A symbolic link of the host is a symbolic link in the jail, and a directory is bound."""
    args = argv()
    assert has(args, "--symlink", "usr/bin", "/bin")
    assert has(args, "--ro-bind", "/lib64", "/lib64")
