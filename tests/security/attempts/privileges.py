"""To become somebody else, to gain a right, to lift a limit, to make a namespace or a mount."""

from __future__ import annotations

from . import Attempt

ATTEMPTS = [
    Attempt(group, name, code, *refused)
    for group, lines in {
        "Privileges": [
            ("setuid", "told = [attempt(os.setuid, 0), attempt(os.setresuid, 0, 0, 0)]", "EPERM"),
            ("setgid", "told = [attempt(os.setgid, 0), attempt(os.setgroups, [0])]", "EPERM"),
            (
                "capabilities",
                """
def capset():
    c("capset", struct.pack("=II", 0x20080522, 0), struct.pack("=6I", *[0xFFFFFFFF] * 6))
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
told = [attempt(capset), attempt(c, "prctl", 47, 2, 21, 0, 0),
        *("EPERM" if not int(status[n], 16) else n for n in ("CapPrm", "CapEff", "CapBnd", "CapInh"))]""",
                "EPERM",
            ),
            (
                "setuid programs",
                "told = found(re.findall('uid=0|root:', shell('su -c id; sudo -n id; pkexec id; chfn x')))",
                "nothing",
            ),
            (
                "a setuid program of one's own",
                """
shutil.copy("/usr/bin/id", "/data/id")
os.chmod("/data/id", 0o6755)
told = "uid_" + shell("/data/id -u").strip()""",
                "uid_1000",
            ),
            ("to gain privileges again", "told = attempt(c, 'prctl', 38, 0, 0, 0, 0)", "EINVAL"),
            ("to drop the filter of calls", "told = attempt(c, 'prctl', 22, 0, 0, 0, 0)", "EINVAL"),
            (
                "to be spared when memory is short",
                "told = attempt(write, '/proc/self/oom_score_adj', '-1000')",
                "EACCES",
            ),
            (
                "real-time priority",
                "told = attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))",
                "EPERM",
            ),
            (
                "a higher priority",
                "told = attempt(os.setpriority, os.PRIO_PROCESS, 0, -10)",
                "EPERM EACCES",
            ),
            ("first at the disk", "told = attempt(call, 'ioprio_set', 1, 0, 1 << 13)", "EPERM"),
            (
                "higher limits",
                """
told = [attempt(resource.setrlimit, kind, (resource.RLIM_INFINITY,) * 2)
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)]""",
                "EPERM",
            ),
        ],
        "Namespaces and mounts": [
            ("a user namespace", "told = attempt(c, 'unshare', 0x10000000)", "EPERM"),
            (
                "other namespaces",
                """
told = [attempt(c, "unshare", flag) for flag in (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000)]""",
                "EPERM",
            ),
            (
                "a user namespace by clone",
                "told = attempt(call, 'clone', 0x10000011, 0, 0, 0, 0)",
                "EPERM",
            ),
            (
                "a user namespace by clone3",
                "told = attempt(call, 'clone3', struct.pack('=11Q', 0x10000000, *[0] * 10), 88)",
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
told = [attempt(c, "setns", 0, 0), *(attempt(enter, name) for name in ("mnt", "net", "pid", "user"))]""",
                "EPERM EACCES",
            ),
            (
                "namespaces by programs",
                """
lines = ["unshare -Ur id", "unshare -n id", "nsenter -t 1 -a id", "bwrap --ro-bind / / id"]
told = found(re.findall("uid=", "".join(map(shell, lines))))""",
                "nothing",
            ),
            (
                "another map of users",
                "told = attempt(write, '/proc/self/uid_map', '0 0 1')",
                "EPERM EACCES",
            ),
            ("mount", "told = attempt(c, 'mount', b'x', b'/tmp', b'tmpfs', 0, 0)", "EPERM"),
            (
                "the system mounted writable",
                "told = attempt(c, 'mount', 0, b'/', 0, 0x1020, 0)",
                "EPERM",
            ),
            (
                "a bind mount",
                "told = attempt(c, 'mount', b'/data', b'/tmp', 0, 0x1000, 0)",
                "EPERM",
            ),
            (
                "umount",
                "told = [attempt(c, 'umount2', path, 2) for path in (b'/data', b'/proc')]",
                "EPERM",
            ),
            (
                "the new calls for mounts",
                """
told = [attempt(call, "fsopen", b"tmpfs", 0), attempt(call, "open_tree", -100, b"/", 1),
        attempt(call, "move_mount", 0, b"", -100, b"/tmp", 4),
        attempt(call, "mount_setattr", -100, b"/", 0, bytes(32), 32)]""",
                "EPERM",
            ),
            ("pivot_root", "told = attempt(call, 'pivot_root', b'/data', b'/data')", "EPERM"),
            ("chroot", "told = attempt(os.chroot, '/data')", "EPERM"),
        ],
    }.items()
    for name, code, *refused in lines
]
