"""More than a share, by cells that live to tell. Those that do not are in `test_deadly.py`."""

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
        ("/tmp", _FILL + "told = filled('/tmp')", "ENOSPC"),
        ("the home", _FILL + "told = filled('/home/sandbox')", "ENOSPC"),
        ("shared memory", _FILL + "told = filled('/dev/shm')", "ENOSPC"),
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
told = attempt(grow)""",
            "EFBIG",
        ),
        (
            "descriptors",
            """
opened = []
def exhaust():
    while len(opened) < facts["open_files"]:
        opened.append(os.dup(1))
told = attempt(exhaust)
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
    told = attempt(exhaust)
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
    told = "done"
except RuntimeError:
    told = "refused"
release.set()""",
            "refused",
        ),
        (
            "a dump of a crash",
            """
if (pid := os.fork()) == 0:
    os.abort()
status = os.waitpid(pid, 0)[1]
told = "dumped" if os.WCOREDUMP(status) or glob.glob("/data/core*") else "nothing" """,
            "nothing",
        ),
        (
            "messages that outlive the sandbox",
            """
told = found(line for name in ("msg", "sem", "shm") for line in
             open(f"/proc/sysvipc/{name}").readlines()[1:])""",
            "nothing",
        ),
    ]
]
