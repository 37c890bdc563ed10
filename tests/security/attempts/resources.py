"""Attempts to use more than a share of a resource. Those that end the kernel are in `deadly.py`."""

from __future__ import annotations

from . import Attempt

_FILL = """
def fill(path):
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
def filled(folder):
    path = folder + "/full"
    try:
        verdict = attempt(fill, path)
        return verdict if os.path.getsize(path) <= facts["tmp_size"] else "beyond"
    finally:
        os.unlink(path)
"""

ATTEMPTS = [
    Attempt("Shares", name, code, refused)
    for name, code, refused in [
        ("/tmp", _FILL + "verdict = filled('/tmp')", "ENOSPC"),
        ("the home", _FILL + "verdict = filled('/home/sandbox')", "ENOSPC"),
        ("shared memory", _FILL + "verdict = filled('/dev/shm')", "ENOSPC"),
        (
            "one file of the workspace",
            """
def grow():
    fd = os.open("/data/big", os.O_CREAT | os.O_WRONLY)
    try:
        os.truncate(fd, 1 << 40)
    finally:
        os.close(fd)
        os.unlink("/data/big")
verdict = attempt(grow)""",
            "EFBIG",
        ),
        (
            "descriptors",
            """
opened = []
def exhaust():
    while len(opened) < facts["open_files"]:
        opened.append(os.dup(1))
verdict = attempt(exhaust)
for fd in opened:
    os.close(fd)""",
            "EMFILE",
        ),
        (
            "processes",
            """
children = []
def exhaust():
    while len(children) < facts["processes"]:
        if (pid := os.fork()) == 0:
            signal.pause()
            os._exit(0)
        children.append(pid)
try:
    verdict = attempt(exhaust)
finally:
    for pid in children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)""",
            "EAGAIN",
        ),
        (
            "threads",
            """
release, count = threading.Event(), 0
try:
    while count < facts["processes"]:
        threading.Thread(target=release.wait, daemon=True).start()
        count += 1
    verdict = "done"
except RuntimeError:
    verdict = "refused"
release.set()""",
            "refused",
        ),
        (
            "pipes larger than the host's limit",
            """
ends = []
def enlarge():
    while len(ends) < 200:
        ends.extend(os.pipe())
        fcntl.fcntl(ends[-1], 1031, 1 << 20)
verdict = attempt(enlarge)
for fd in ends:
    os.close(fd)""",
            "EPERM",
        ),
        (
            "watches of files",
            """
watches = []
def watch():
    while len(watches) < facts["open_files"]:
        watches.append(c("inotify_init1", 0))
verdict = attempt(watch)
for fd in watches:
    os.close(fd)""",
            "EMFILE",
        ),
        (
            "a dump of a crash",
            """
if (pid := os.fork()) == 0:
    os.abort()
status = os.waitpid(pid, 0)[1]
verdict = "dumped" if os.WCOREDUMP(status) or glob.glob("/data/core*") else "nothing" """,
            "nothing",
        ),
        (
            "messages that outlive the sandbox",
            """
verdict = found(line for name in ("msg", "sem", "shm") for line in
             open(f"/proc/sysvipc/{name}").readlines()[1:])""",
            "nothing",
        ),
    ]
]
