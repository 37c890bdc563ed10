"""Attempts to become another user, gain a right, lift a limit, or create a namespace or a mount."""

from __future__ import annotations

from . import Attempt

ATTEMPTS = [
    Attempt(group, name, code, *refused)
    for group, lines in {
        "Privileges": [
            (
                "setuid",
                "verdict = [attempt(os.setuid, 0), attempt(os.setresuid, 0, 0, 0)]",
                "EPERM",
            ),
            ("setgid", "verdict = [attempt(os.setgid, 0), attempt(os.setgroups, [0])]", "EPERM"),
            (
                "capabilities",
                """
def capset():
    c("capset", struct.pack("=II", 0x20080522, 0), struct.pack("=6I", *[0xFFFFFFFF] * 6))
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
verdict = [attempt(capset), attempt(c, "prctl", 47, 2, 21, 0, 0),
        *("EPERM" if not int(status[n], 16) else n for n in ("CapPrm", "CapEff", "CapBnd", "CapInh"))]""",
                "EPERM",
            ),
            (
                "setuid programs",
                """
output = shell('su -c id; sudo -n id; pkexec id; chfn x')
verdict = found(re.findall('uid=0|root:', output))""",
                "nothing",
            ),
            (
                "a setuid program of one's own",
                """
shutil.copy("/usr/bin/id", "/data/id")
os.chmod("/data/id", 0o6755)
verdict = "uid_" + shell("/data/id -u").strip()""",
                "uid_1000",
            ),
            ("to gain privileges again", "verdict = attempt(c, 'prctl', 38, 0, 0, 0, 0)", "EINVAL"),
            (
                "to drop the filter of calls",
                "verdict = attempt(c, 'prctl', 22, 0, 0, 0, 0)",
                "EINVAL",
            ),
            (
                "to be spared when memory is short",
                "verdict = attempt(write, '/proc/self/oom_score_adj', '-1000')",
                "EACCES",
            ),
            (
                "real-time priority",
                "verdict = attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))",
                "EPERM",
            ),
            (
                "a higher priority",
                "verdict = attempt(os.setpriority, os.PRIO_PROCESS, 0, -10)",
                "EPERM EACCES",
            ),
            ("first at the disk", "verdict = attempt(call, 'ioprio_set', 1, 0, 1 << 13)", "EPERM"),
            (
                "higher limits",
                """
verdict = [attempt(resource.setrlimit, kind, (resource.RLIM_INFINITY,) * 2)
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)]""",
                "EPERM",
            ),
        ],
        "Namespaces and mounts": [
            ("a user namespace", "verdict = attempt(c, 'unshare', 0x10000000)", "EPERM"),
            (
                "other namespaces",
                """
verdict = [attempt(c, "unshare", flag) for flag in (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000)]""",
                "EPERM",
            ),
            (
                "a user namespace by clone",
                "verdict = attempt(call, 'clone', 0x10000011, 0, 0, 0, 0)",
                "EPERM",
            ),
            (
                "a user namespace by clone3",
                "verdict = attempt(call, 'clone3', struct.pack('=11Q', 0x10000000, *[0] * 10), 88)",
                "ENOSYS",
                "ENOSYS EPERM",
            ),
            (
                "to enter one",
                """
def enter(name):
    fd = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
    try:
        c("setns", fd, 0)
    finally:
        os.close(fd)
verdict = [attempt(c, "setns", 0, 0), *(attempt(enter, name) for name in ("mnt", "net", "pid", "user"))]""",
                "EPERM EACCES",
            ),
            (
                "namespaces by programs",
                """
lines = ["unshare -Ur id", "unshare -n id", "nsenter -t 1 -a id", "bwrap --ro-bind / / id"]
verdict = found(re.findall("uid=", "".join(map(shell, lines))))""",
                "nothing",
            ),
            (
                "another map of users",
                "verdict = attempt(write, '/proc/self/uid_map', '0 0 1')",
                "EPERM EACCES",
            ),
            ("mount", "verdict = attempt(c, 'mount', b'x', b'/tmp', b'tmpfs', 0, 0)", "EPERM"),
            (
                "the system mounted writable",
                "verdict = attempt(c, 'mount', 0, b'/', 0, 0x1020, 0)",
                "EPERM",
            ),
            (
                "a bind mount",
                "verdict = attempt(c, 'mount', b'/data', b'/tmp', 0, 0x1000, 0)",
                "EPERM",
            ),
            (
                "umount",
                "verdict = [attempt(c, 'umount2', path, 2) for path in (b'/data', b'/proc')]",
                "EPERM",
            ),
            (
                "the new calls for mounts",
                """
verdict = [attempt(call, "fsopen", b"tmpfs", 0), attempt(call, "open_tree", -100, b"/", 1),
        attempt(call, "move_mount", 0, b"", -100, b"/tmp", 4),
        attempt(call, "mount_setattr", -100, b"/", 0, bytes(32), 32)]""",
                "EPERM",
            ),
            ("pivot_root", "verdict = attempt(call, 'pivot_root', b'/data', b'/data')", "EPERM"),
            ("chroot", "verdict = attempt(os.chroot, '/data')", "EPERM"),
        ],
    }.items()
    for name, code, *refused in lines
]
