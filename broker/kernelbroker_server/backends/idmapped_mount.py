"""Starts a program that sees a directory of the host with the rights of the directory's owner.

    python -m kernelbroker_server.backends.idmapped_mount TARGET SOURCE_FD UID GID USER ro|rw PROGRAM ...

The program runs in a mount namespace of its own, where the directory is mounted at TARGET. The kernel
translates owners in this mount (an ID-mapped mount, Linux 5.12): files of UID and GID look as if they were
USER's, and what USER makes there belongs to UID and GID on the disk. Files of others stay those of others.
The mount does not include other mounts below the directory. It ends with the namespace.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # on all architectures (asm-generic)
_CLONE_NEWUSER = 0x10000000
_AT_EMPTY_PATH, _OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 0x1000, 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 0x1, 0x2, 0x4, 0x100000
_PRIVATE = 1 << 18
_CLONE_NEWNS, _MS_REC, _MS_SLAVE = 0x20000, 1 << 14, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """`struct mount_attr`, mount_setattr(2)."""

    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def _mount(source: int, target: str, owner: tuple[int, int], uid: int, read_only: bool) -> None:
    """Mount a directory in a new mount namespace. Raises OSError."""
    tree = _syscall(
        "open_tree", _OPEN_TREE, source, b"", _AT_EMPTY_PATH | _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
    )
    flags = _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if read_only else 0)
    namespace = 0
    if owner != (uid, uid):
        namespace, flags = _user_namespace(owner, uid), flags | _ATTR_IDMAP
    attributes = _Attributes(flags, 0, _PRIVATE, namespace)
    size = ctypes.sizeof(attributes)
    _syscall(
        "mount_setattr", _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size
    )
    # Only now: directories of another namespace cannot be cloned.
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mount")
    _syscall("move_mount", _MOVE_MOUNT, tree, b"", -100, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)


def _user_namespace(owner: tuple[int, int], uid: int) -> int:
    """A descriptor of a user namespace that maps the owner to the sandbox's user."""
    is_made, made = os.pipe()
    done, is_done = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _checked(_libc.unshare(_CLONE_NEWUSER), "unshare")
            os.write(made, b"1")
            os.close(is_done)
            os.read(done, 1)
        finally:
            os._exit(0)
    os.close(made)
    try:
        if not os.read(is_made, 1):
            raise OSError("no user namespace can be made")
        for name, own in zip(("uid_map", "gid_map"), owner, strict=True):
            Path(f"/proc/{pid}/{name}").write_text(f"{own} {uid} 1\n")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(is_done)
        os.waitpid(pid, 0)


def _syscall(name: str, number: int, *arguments: object) -> int:
    wrapped = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *wrapped), name)


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def main() -> None:
    target, source, own_uid, own_gid, uid, mode, *program = sys.argv[1:]
    try:
        _mount(int(source), target, (int(own_uid), int(own_gid)), int(uid), mode == "ro")
        os.close(int(source))
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(
            f"the project cannot be mounted, since its file system must support ID-mapped mounts: {error}"
        )


if __name__ == "__main__":
    main()
