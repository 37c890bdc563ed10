"""Additional expected verdicts under gVisor, with the reasons.

gVisor answers system calls itself. A call affects only gVisor's own kernel, of which each sandbox has one,
in a process of the host without rights. So a call that succeeds does not leave the sandbox.
"""

from __future__ import annotations

_UNREACHABLE = "its network stack has no route, and says so by another error"
_NOT_THERE = "gVisor does not have the call"

ALSO_RIGHT: dict[str, tuple[str, str]] = {
    "a file by its handle": ("ENOTSUP", _NOT_THERE),
    "a descriptor of it": ("ENOSYS", _NOT_THERE),
    "its memory by a call": ("ENOSYS", _NOT_THERE),
    "to end the first process": ("ended", "the first process of a container is not protected"),
    "capabilities": ("EINVAL", "it has no ambient capabilities"),
    "to be spared when memory is short": (
        "done",
        "the score is kept, and has no effect: the host sees one process",
    ),
    "real-time priority": ("EINVAL", "its own scheduler knows one policy"),
    "a higher priority": ("done", "the value is kept, and has no effect on the host"),
    "a user namespace": ("EINVAL", "a process with threads may not"),
    "other namespaces": ("done EINVAL", "namespaces are gVisor's own"),
    "a user namespace by clone": (
        "done ended",
        "the namespace is gVisor's own; a raw clone in a threaded Python often ends it",
    ),
    "to enter one": ("ENOTSUP ENOENT", _NOT_THERE),
    "namespaces by programs": ("uid=", "root in a user namespace of gVisor's own kernel"),
    "the new calls for mounts": ("ENOSYS", _NOT_THERE),
    "a forged key press on a terminal that it controls": ("ENOTTY", _NOT_THERE),
    "pipes larger than the host's limit": ("done", "they are in the sandbox's own memory"),
    "keyrings": ("EACCES", "it has no keyrings"),
    "perf_event_open": ("ENODEV", _NOT_THERE),
    "userfaultfd": ("ENOSYS", _NOT_THERE),
    "io_uring, past the filter": ("EINVAL", "rings are not enabled"),
    "the kernel's log": ("done", "the log is gVisor's own, and made up"),
    "what others do with files": ("ENOSYS", _NOT_THERE),
    "the program for core dumps": ("ENOENT", "there is no such parameter"),
    "to make one": (
        "done",
        "a device in its memory; it opens none of the host's (attempted below)",
    ),
    "to open one": ("done", "fuse and tun are gVisor's own"),
    "one that was not meant to be there": ("fuse net", "gVisor's own"),
    "the terminal": ("EIO", "it has no controlling terminal, and says so by another error"),
    "the internet": ("EHOSTUNREACH", _UNREACHABLE),
    "the internet by IPv6": ("EHOSTUNREACH", _UNREACHABLE),
    "datagrams": ("EHOSTUNREACH", _UNREACHABLE),
    "the metadata service": ("EHOSTUNREACH", _UNREACHABLE),
    "the broker's port on the host's addresses": ("EHOSTUNREACH", _UNREACHABLE),
    "a new interface": ("EACCES", "refused by another error"),
    "an interface renumbered": ("ENOTTY", _NOT_THERE),
    "a tunnel": ("done", "the device is gVisor's own; to make an interface of it is refused"),
    "processes": ("ended", "it ends where the engine gives it no more threads"),
    "threads": ("done", "threads inside are no threads of the host"),
}
"""By the attempt's name: further verdicts, and the reason."""

NOT_MADE: dict[str, str] = {
    "the gateway's listener, to answer in its place": "gVisor has no pidfd_open",
    "another's shared memory": "there is no /proc/sysvipc to see it in",
    "messages that outlive the sandbox": "there is no /proc/sysvipc to see them in",
    "an open file or directory of the host's": "a descriptor's name tells no file of the host",
}
"""By their names: attempts whose cells need what gVisor does not have."""
