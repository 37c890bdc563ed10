"""Attempts on the host's kernel: its system calls, parameters and devices."""

from __future__ import annotations

from . import Attempt

# Opens a file by io_uring, which no filter of system calls sees: where an engine's filter lets a ring
# be made, the file must still be refused.
_RING = """
def by_ring(path, flags):
    params = (ctypes.c_uint32 * 30)()
    ring = call("io_uring_setup", 4, params)
    try:
        queue, done = mmap.mmap(ring, 4096, offset=0), mmap.mmap(ring, 4096, offset=0x8000000)
        entries = mmap.mmap(ring, 4096, offset=0x10000000)
        name = ctypes.create_string_buffer(path)
        struct.pack_into("=BBHiQQIIQ", entries, 0, 18, 0, 0, -100, 0, ctypes.addressof(name), 0, flags, 1)
        struct.pack_into("=I", queue, params[16], 0)
        struct.pack_into("=I", queue, params[11], 1)
        call("io_uring_enter", ring, 1, 1, 1, 0, 0)
        _, result, _ = struct.unpack_from("=QiI", done, params[25])
    finally:
        os.close(ring)
    if result < 0:
        raise OSError(-result, "")
"""

ATTEMPTS = [
    Attempt(group, name, code, *refused)
    for group, lines in {
        "Calls of the host's kernel": [
            (
                "keyrings",
                """
verdict = [attempt(call, "add_key", b"user", b"name", b"value", 5, -4),
        attempt(call, "request_key", b"user", b"name", 0, -4), attempt(call, "keyctl", 0, -4, 0)]""",
                "EPERM",
            ),
            ("bpf", "verdict = attempt(call, 'bpf', 0, bytes(128), 128)", "EPERM"),
            (
                "perf_event_open",
                "verdict = attempt(call, 'perf_event_open', bytes(128), 0, -1, -1, 0)",
                "EPERM",
            ),
            ("userfaultfd", "verdict = attempt(call, 'userfaultfd', 0)", "EPERM"),
            (
                "io_uring, past the filter",
                _RING
                + """
verdict = [attempt(by_ring, b"/etc/shadow", os.O_RDONLY), attempt(by_ring, b"/etc/passwd", os.O_RDWR)]""",
                "EPERM",
                "EPERM EACCES EROFS",
            ),
            ("kexec", "verdict = attempt(call, 'kexec_load', 0, 0, 0, 0)", "EPERM"),
            (
                "reboot",
                "verdict = attempt(call, 'reboot', 0xfee1dead, 672274793, 0x89abcdef, 0)",
                "EPERM",
            ),
            (
                "modules",
                """
verdict = [attempt(call, "init_module", b"x", 1, b""), attempt(call, "finit_module", 0, b"", 0),
        attempt(c, "delete_module", b"x", 0)]""",
                "EPERM",
            ),
            ("the kernel's log", "verdict = attempt(c, 'klogctl', 3, bytes(64), 64)", "EPERM"),
            (
                "the clock",
                "verdict = [attempt(time.clock_settime, 0, 1e9), attempt(c, 'settimeofday', bytes(16), 0)]",
                "EPERM",
            ),
            ("the host's name", "verdict = attempt(socket.sethostname, 'other')", "EPERM"),
            (
                "swap",
                "verdict = [attempt(c, 'swapon', b'/data/x', 0), attempt(c, 'swapoff', b'/x')]",
                "EPERM",
            ),
            (
                "accounting and quotas",
                "verdict = [attempt(call, 'acct', 0), attempt(call, 'quotactl', 0x80000100, 0, 0, 0)]",
                "EPERM",
            ),
            (
                "what others do with files",
                "verdict = attempt(call, 'fanotify_init', 0, 0)",
                "EPERM",
            ),
            (
                "a forged key press",
                "verdict = attempt(fcntl.ioctl, 0, 0x5412, b'x')",
                "EPERM",
                "ENOTTY EPERM",
            ),
            (
                "a forged key press on a terminal that it controls",
                """
import subprocess, sys
# Another program: a copy of a kernel with threads does not live everywhere.
code = '''if True:
    import errno, fcntl, pty
    master, slave = pty.openpty()
    fcntl.ioctl(slave, 0x540E, 0)
    try:
        fcntl.ioctl(slave, 0x5412, b"x")
    except OSError as exc:
        print(errno.errorcode[exc.errno])
    else:
        print("done")'''
argv = [sys.executable, "-c", code]
verdict = subprocess.run(argv, start_new_session=True, capture_output=True, text=True).stdout.strip()""",
                "EPERM",
                "EPERM EIO done",  # a terminal of the container alone
            ),
        ],
        "/proc and /sys of the host": [
            (
                "the program for core dumps",
                "verdict = attempt(write, '/proc/sys/kernel/core_pattern', '|/data/x')",
                "EROFS EACCES EPERM",
            ),
            (
                "other parameters",
                """
verdict = [attempt(write, path, "1") for path in (
    "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches", "/proc/sys/fs/file-max",
    "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces", "/proc/sys/vm/panic_on_oom")]""",
                "EROFS EACCES EPERM ENOENT",
            ),
            (
                "requests to the kernel",
                "verdict = attempt(write, '/proc/sysrq-trigger', 'b')",
                "EROFS EACCES EPERM ENOENT",
            ),
            (
                "the kernel's memory",
                "verdict = attempt(look, '/proc/kcore')",
                "EACCES ENOENT EPERM empty",
            ),
            (
                "the kernel's messages",
                "verdict = attempt(look, '/proc/kmsg')",
                "EACCES ENOENT EPERM",
            ),
            (
                "interrupts and programs' formats",
                """
verdict = [attempt(write, path, "1") for path in (
    "/proc/irq/default_smp_affinity", "/proc/sys/fs/binfmt_misc/register")]""",
                "EROFS EACCES EPERM ENOENT",
            ),
            (
                "/sys",
                """
verdict = [attempt(write, path, "1") for path in (
    "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state",
    "/sys/kernel/kexec_crash_size", "/sys/bus/pci/rescan")]""",
                "ENOENT",
                "EROFS EACCES EPERM ENOENT",
            ),
            (
                "control groups",
                """
verdict = found(path for path in glob.glob("/sys/fs/cgroup/**", recursive=True)
             if os.path.isfile(path) and attempt(os.open, path, os.O_WRONLY) == "done")""",
                "nothing",
            ),
            (
                "a program for empty groups",
                """
found_here = glob.glob("/sys/fs/cgroup/**/release_agent", recursive=True)
verdict = [attempt(write, path, "/data/x") for path in found_here or ["/sys/fs/cgroup/release_agent"]]""",
                "ENOENT",
                "EROFS EACCES ENOENT",
            ),
            (
                "firmware, traces and faults",
                """
verdict = found(path for folder in ("/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing")
             for path in glob.glob(folder + "/*"))""",
                "nothing",
            ),
        ],
        "Devices": [
            (
                "to make one",
                """
verdict = [attempt(os.mknod, "/data/disk", 0o60666, os.makedev(254, 0)),
        attempt(os.mknod, "/tmp/memory", 0o20666, os.makedev(1, 1))]""",
                "EPERM",
            ),
            (
                "to open one",
                """
verdict = [attempt(os.open, f"/dev/{name}", os.O_RDWR) for name in (
    "mem", "kmem", "port", "sda", "vda", "nvme0n1", "kvm", "fuse", "net/tun", "loop-control", "kmsg",
    "mapper/control", "vsock", "userfaultfd")]""",
                "ENOENT",
            ),
            (
                "one that was not meant to be there",
                """
meant = "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero console"
verdict = found(set(os.listdir("/dev")) - set(meant.split()))""",
                "nothing",
            ),
            ("the terminal", "verdict = attempt(os.open, '/dev/tty', os.O_RDWR)", "ENXIO"),
        ],
    }.items()
    for name, code, *refused in lines
]
