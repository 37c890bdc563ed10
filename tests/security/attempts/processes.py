"""Attempts on processes outside of the sandbox: to see, signal or read them; and on inherited objects."""

from __future__ import annotations

from . import Attempt

# Every process of the sandbox: the kernel, its gateway and what started that. Secrets are looked for by
# their digests, since the cell itself, which all of them pass on, may not hold them.
_SECRETS = """
def secrets(data):
    runs = set(re.findall(rb"[\\w-]{%d,}" % min(length for length, _ in facts["secrets"]), data))
    for length, digest in facts["secrets"]:
        if any(len(run) == length and hashlib.sha256(run).hexdigest() == digest for run in runs):
            yield f"secret_of_{length}"
"""

ATTEMPTS = [
    Attempt(group, name, code, *refused)
    for group, lines in {
        "Processes outside": [
            (
                "to see them",
                """
def strangers():
    for pid in pids():
        try:
            line = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if "kernelbroker_server" in line or facts["needle"] in line or "dockerd" in line:
            yield line
verdict = found(strangers())""",
                "nothing",
            ),
            ("to signal the broker", "verdict = attempt(os.kill, facts['broker_pid'], 0)", "ESRCH"),
            ("to stop its group", "verdict = attempt(os.killpg, facts['broker_pid'], 19)", "ESRCH"),
            (
                "a descriptor of it",
                "verdict = attempt(call, 'pidfd_open', facts['broker_pid'], 0)",
                "ESRCH",
            ),
            (
                "its environment",
                "verdict = attempt(look, f\"/proc/{facts['broker_pid']}/environ\")",
                "ENOENT",
            ),
            (
                "its memory",
                "verdict = attempt(look, f\"/proc/{facts['broker_pid']}/mem\")",
                "ENOENT",
            ),
            (
                "its memory by a call",
                "verdict = attempt(call, 'process_vm_readv', facts['broker_pid'], 0, 0, 0, 0, 0)",
                "EPERM",
                "ESRCH EPERM",
            ),
            (
                "to trace it",
                "verdict = attempt(c, 'ptrace', 16, facts['broker_pid'], 0, 0)",
                "EPERM",
                "ESRCH EPERM",
            ),
            (
                "its priority",
                "verdict = attempt(os.setpriority, os.PRIO_PROCESS, facts['broker_pid'], 19)",
                "ESRCH",
            ),
            (
                "its limits",
                "verdict = attempt(resource.prlimit, facts['broker_pid'], resource.RLIMIT_NOFILE, (3, 3))",
                "ESRCH",
            ),
            # The kernel drops it: nobody inside may end the first process of a namespace.
            ("to end the first process", "verdict = attempt(os.kill, 1, 9)", "EPERM done"),
        ],
        "Inherited descriptors and environment": [
            (
                "secrets in an environment",
                _SECRETS
                + """
def everywhere():
    yield from secrets(repr(dict(os.environ)).encode())
    for pid in pids():
        try:
            yield from secrets(open(f"/proc/{pid}/environ", "rb").read())
        except OSError:
            pass
verdict = found(everywhere())""",
                "nothing",
            ),
            (
                "secrets in a memory, the gateway's too",
                _SECRETS
                + """
def memories():
    for pid in pids():
        try:
            maps, memory = open(f"/proc/{pid}/maps").readlines(), open(f"/proc/{pid}/mem", "rb", 0)
        except OSError:
            continue
        with memory:
            for line in maps:
                start, end = (int(number, 16) for number in line.split()[0].split("-"))
                if line.split()[1].startswith("rw") and end - start < 1 << 26:
                    try:
                        memory.seek(start)
                        yield from secrets(memory.read(end - start))
                    except (OSError, ValueError):
                        pass
verdict = found(memories())""",
                "nothing",
            ),
            (
                "an open file or directory of the host's",
                """
known = r"(pipe:|socket:|anon_inode:|/dev/(null|urandom)$|/proc/|/tmp/|/dev/shm/)"
def strange():
    for pid in pids():
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if not re.match(known, link):
                yield f"{pid}:{name}:{link}"
verdict = found(strange())""",
                "nothing",
            ),
            (
                "a way out through an open descriptor",
                """
verdict = [attempt(look, f"/proc/{pid}/fd/{name}/../../../../../.." + facts["runtime_file"])
        for pid in (os.getpid(), os.getppid()) for name in range(20)]""",
                "ENOENT ENOTDIR EACCES",
            ),
            (
                "the gateway's listener, to answer in its place",
                """
pidfd = call("pidfd_open", os.getppid(), 0)
verdict = [attempt(call, "pidfd_getfd", pidfd, fd, 0) for fd in range(3, 30)]
os.close(pidfd)""",
                "EPERM",
            ),
            (
                "another way to the gateway's own API",
                """
paths = {line.split()[-1] for line in open("/proc/net/unix").readlines()[1:]}
verdict = found(path for path in paths if path.startswith(("/", "@")) and "/ipc-" not in path
             and attempt(connect, path.replace("@", chr(0)), socket.AF_UNIX) == "done")""",
                "nothing",
            ),
            (
                "more words at the gateway's input",
                "verdict = attempt(look, f'/proc/{os.getppid()}/fd/0')",
                "empty EACCES",
            ),
        ],
    }.items()
    for name, code, *refused in lines
]
