"""Processes outside: to see them, to signal them, to read what they hold; and what was inherited."""

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
told = found(strangers())""",
                "nothing",
            ),
            ("to signal the broker", "told = attempt(os.kill, facts['broker_pid'], 0)", "ESRCH"),
            ("to stop its group", "told = attempt(os.killpg, facts['broker_pid'], 19)", "ESRCH"),
            (
                "a descriptor of it",
                "told = attempt(call, 'pidfd_open', facts['broker_pid'], 0)",
                "ESRCH",
            ),
            (
                "its environment",
                "told = attempt(look, f\"/proc/{facts['broker_pid']}/environ\")",
                "ENOENT",
            ),
            ("its memory", "told = attempt(look, f\"/proc/{facts['broker_pid']}/mem\")", "ENOENT"),
            (
                "its memory by a call",
                "told = attempt(call, 'process_vm_readv', facts['broker_pid'], 0, 0, 0, 0, 0)",
                "EPERM",
                "ESRCH EPERM",
            ),
            (
                "to trace it",
                "told = attempt(c, 'ptrace', 16, facts['broker_pid'], 0, 0)",
                "EPERM",
                "ESRCH EPERM",
            ),
            (
                "its priority",
                "told = attempt(os.setpriority, os.PRIO_PROCESS, facts['broker_pid'], 19)",
                "ESRCH",
            ),
            (
                "its limits",
                "told = attempt(resource.prlimit, facts['broker_pid'], resource.RLIMIT_NOFILE, (3, 3))",
                "ESRCH",
            ),
            # The kernel drops it: nobody inside may end the first process of a namespace.
            ("to end the first process", "told = attempt(os.kill, 1, 9)", "EPERM done"),
        ],
        "What was inherited": [
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
told = found(everywhere())""",
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
told = found(memories())""",
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
told = found(strange())""",
                "nothing",
            ),
            (
                "a way out through an open descriptor",
                """
told = [attempt(look, f"/proc/{pid}/fd/{name}/../../../../../.." + facts["runtime_file"])
        for pid in (os.getpid(), os.getppid()) for name in range(20)]""",
                "ENOENT ENOTDIR EACCES",
            ),
            (
                "more words at the gateway's input",
                "told = attempt(look, f'/proc/{os.getppid()}/fd/0')",
                "empty EACCES",
            ),
        ],
    }.items()
    for name, code, *refused in lines
]
