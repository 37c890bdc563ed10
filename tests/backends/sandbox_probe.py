"""What code in a sandbox can observe of its process and of its gateway's.

The text of this file is executed in a cell. `observe()` returns JSON by field. What differs between any two
sandboxes (pids, inodes, random names, sizes, times) is left out; `clean` replaces it in texts.
"""

# ruff: noqa: PTH110, PTH115, PTH116, PTH123, PTH208 - it asks the system

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_VARIES = (
    *("Pid", "Tgid", "Ngid", "PPid", "NStgid", "NSpid", "NSpgid", "NSsid", "State", "Threads"),
    *("FDSize", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"),
)
"""Lines of `/proc/PID/status` that differ between any two processes; so do all sizes of memory."""

_PRCTL = (
    *(("pdeathsig", 2), ("dumpable", 3), ("unaligned", 5), ("keepcaps", 7), ("timing", 13)),
    *(("seccomp", 21), ("tsc", 25), ("securebits", 27), ("timerslack", 30), ("mce_kill", 34)),
    *(("subreaper", 37), ("no_new_privs", 39), ("thp_disable", 42), ("io_flusher", 58)),
    *(("mdwe", 66), ("memory_merge", 68)),
)
"""Requests of prctl(2) that read a property of the caller."""
_BY_POINTER = ("pdeathsig", "unaligned", "tsc", "subreaper")
_O_LARGEFILE = 0o100000
"""Set by some ways of opening a file; it means nothing on a 64-bit system."""
_SPECULATION = {"store_bypass": 0, "indirect_branch": 1, "l1d_flush": 2}

_SYSCALLS = """
import ctypes, json, os, select, signal
libc = ctypes.CDLL(None, use_errno=True)
# They fork without a way back, end or stop the process, wait for ever, or write the host's disks.
skip = {15, 23, 34, 56, 57, 58, 60, 130, 162, 231, 435}
found = {}
for number in sorted({*range(0, 475), 512, 520} - skip):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.closerange(0, 3)
        args = [ctypes.c_long(-1)] * 6
        value = libc.syscall(ctypes.c_long(number), *args)
        os.write(write, str(ctypes.get_errno() if value == -1 else 0).encode())
        os._exit(0)
    os.close(write)
    if not select.select([read], [], [], 5)[0]:
        os.kill(pid, signal.SIGKILL)
    answer = os.read(read, 16).decode()
    os.close(read)
    _, status = os.waitpid(pid, 0)
    found[number] = answer or f"status {status}"
print(json.dumps(found))
"""


def observe() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, pid in (("kernel", os.getpid()), ("gateway", os.getppid())):
        found |= {f"{name}.{field}": value for field, value in _process(pid).items()}
    return found | {f"kernel.{field}": value for field, value in _own().items()}


def clean(value: Any) -> Any:
    """A JSON value without what differs between any two sandboxes."""
    if isinstance(value, dict):
        return {str(key): clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clean(each) for each in value]
    return _plain(value) if isinstance(value, str) else value


def _attempt(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except OSError as error:
        return f"{type(error).__name__} {error.errno}"


def _text(path: str) -> str:
    return _plain(Path(path).read_bytes().decode(errors="replace"))


def _plain(text: str) -> str:
    text = re.sub(r"kernelbroker-\w+/\w{12}", "kernelbroker-N/N", text)
    text = re.sub(r"--fd \d+", "--fd N", text.replace("--fd\0", "--fd "))
    text = re.sub(r"StreamHandler \d+", "StreamHandler N", text)
    text = re.sub(r"JPY_PARENT_PID=\d+", "JPY_PARENT_PID=N", text)
    text = re.sub(r"(?<=[:\[])\[?\d{4,}\]?", "N", text)
    text = re.sub(r"kernel-[-\w]{8,}", "kernel-N", text)
    text = re.sub(r"kernel-N/ipc-\d+", "kernel-N/ipc-N", text)
    text = re.sub(r"sandboxes/\w+/", "sandboxes/N/", text)
    text = re.sub(r"/kb-\w+/(data|run)/\w+/", r"/kb-N/\1/N/", text)
    text = re.sub(r"/\w{12}\.give", "/N.give", text)
    return re.sub(r"0x[0-9a-f]{6,}", "0xN", text)


def _process(pid: int) -> dict[str, Any]:
    """What `/proc/PID` tells of a process of the sandbox."""
    proc = f"/proc/{pid}"
    found: dict[str, Any] = {}
    for line in Path(proc, "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name not in _VARIES and not name.startswith(("Vm", "Rss", "Huge")):
            if name == "SigQ":
                value = value.partition("/")[2]
            found[f"status.{name}"] = value.strip()
    for name in (
        *("uid_map", "gid_map", "projid_map", "setgroups", "limits", "oom_score_adj", "oom_adj"),
        *("loginuid", "sessionid", "personality", "timerslack_ns", "autogroup", "coredump_filter"),
        *("cpuset", "cgroup", "attr/current", "comm", "cmdline", "timens_offsets"),
    ):
        found[name] = _attempt(_text, f"{proc}/{name}")
    found["autogroup"] = str(found["autogroup"]).partition(" ")[2]  # its number varies
    found["environ"] = sorted(str(_attempt(_text, f"{proc}/environ")).split("\0"))
    found["mountinfo"] = _mounts(proc)
    found["namespaces"] = sorted(os.listdir(f"{proc}/ns"))
    for name in ("cwd", "root", "exe"):
        found[name] = _attempt(os.readlink, f"{proc}/{name}")
    found["owner"] = _attempt(lambda: [os.stat(proc).st_uid, os.stat(proc).st_gid])
    found["memory"] = _attempt(lambda: open(f"{proc}/mem", "rb").close())
    found["descriptors"] = _descriptors(proc)
    found["mapped files that are not there"] = _lost_maps(proc)
    found["threads"] = sorted(
        Path(proc, "task", task, "comm").read_text().strip() for task in os.listdir(f"{proc}/task")
    )
    # After the name: state, parent, process group, process session, terminal, its process group.
    stat = Path(proc, "stat").read_text().rpartition(")")[2].split()
    words = {str(os.getpid()): "kernel", str(os.getppid()): "gateway", "0": "outside"}
    names = ("parent", "group", "session", "terminal", "terminal group")
    found |= {name: words.get(value, value) for name, value in zip(names, stat[1:6], strict=True)}
    found |= {"priority": stat[15], "nice": stat[16], "exit signal": stat[35]}
    found |= {"realtime priority": stat[37], "policy": stat[38]}
    return found


def _mounts(proc: str) -> list[str]:
    """The mounts without their ids: place, options, kind, source."""
    lines = []
    for line in _text(f"{proc}/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, place, *options = before.split()
        shared = [re.sub(r"\d+", "N", option) for option in options[1:]]
        lines.append(f"{place} {root} {options[0]} {shared} {after}")
    return lines


def _lost_maps(proc: str) -> list[str]:
    """Mapped files whose names lead to nothing in the sandbox."""
    lines = Path(proc, "maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(path for path in paths if not os.path.exists(path))


def _descriptors(proc: str) -> list[str]:
    """The open descriptors: what they lead to and their flags; the numbers only of the first three.

    ZeroMQ's are not counted, since their number depends on which connections exist at the moment.
    """
    sockets = {}
    for line in Path(proc, "net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, kind, state, inode, *path = line.split()
        sockets[inode] = f"unix {flags} {kind} {state} {_plain(''.join(path))}"
    found = []
    uncounted = set()
    for number in os.listdir(f"{proc}/fd"):
        try:
            target = os.readlink(f"{proc}/fd/{number}")
            info = Path(proc, "fdinfo", number).read_text()
        except OSError:  # that of this listing
            continue
        if (socket := re.fullmatch(r"socket:\[(\d+)\]", target)) is not None:
            target = sockets.get(socket[1], "socket")
        flags = dict(line.split(":\t") for line in info.splitlines() if ":\t" in line)["flags"]
        flags = oct(int(flags, 8) & ~_O_LARGEFILE)
        target = re.sub(r"^/proc/\d+/fd$", "a listing of /proc", _plain(target))
        line = f"{number if int(number) < 3 else ''} {target} {flags}".strip()
        if target.startswith(("anon_inode:", "unix ")):
            uncounted.add(line)
        else:
            found.append(line)
    return sorted([*found, *uncounted])


def _own() -> dict[str, Any]:
    """What only the process itself can ask the system."""
    import resource

    libc = ctypes.CDLL(None, use_errno=True)
    found: dict[str, Any] = {}
    for name, number in _PRCTL:
        value = ctypes.c_int(0)
        if name in _BY_POINTER:
            status = libc.prctl(number, ctypes.byref(value), 0, 0, 0)
            found[f"prctl.{name}"] = [status, value.value]
        else:
            status = libc.prctl(number, 0, 0, 0, 0)
            found[f"prctl.{name}"] = status if status >= 0 else f"errno {ctypes.get_errno()}"
    for name, number in _SPECULATION.items():
        found[f"prctl.speculation.{name}"] = libc.prctl(52, number, 0, 0, 0)
    found["prctl.ambient"] = [libc.prctl(47, 1, number, 0, 0) for number in range(41)]
    found["prctl.bounding"] = [libc.prctl(23, number, 0, 0, 0) for number in range(41)]
    found["personality()"] = libc.personality(0xFFFFFFFF)
    found["umask"] = os.umask(0o77)
    os.umask(found["umask"])
    found["rlimits"] = {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }
    found["nice()"] = os.nice(0)
    found["scheduler"] = [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority]
    found["affinity"] = sorted(os.sched_getaffinity(0))
    found["io priority"] = libc.syscall(252, 1, 0)
    found["ids"] = [os.getresuid(), os.getresgid(), os.getgroups()]
    found["same group as the gateway"] = os.getpgrp() == os.getpgid(os.getppid())
    found["same session as the gateway"] = os.getsid(0) == os.getsid(os.getppid())
    found["keyrings"] = [_attempt(_text, "/proc/keys")]
    found["blocked signals"] = _attempt(_blocked)
    found["processes"] = _processes()
    child = subprocess.run([sys.executable, "-c", _SYSCALLS], capture_output=True, text=True)
    found["system calls"] = child.stdout or child.stderr
    return found


def _blocked() -> list[int]:
    import signal

    return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def _processes() -> list[str]:
    """The names of all processes of the sandbox."""
    return sorted(
        Path(f"/proc/{name}/comm").read_text().strip()
        for name in os.listdir("/proc")
        if name.isdigit()
    )
