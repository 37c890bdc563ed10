"""Attempts that end their own kernel, or fill what they have; each ends, and nobody else notices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadly:
    """
    Attributes:
        group: the heading under which docs/security.md counts it.
        causes: of which the result names one; none where the cell succeeds.
        timeout: seconds; generous where the cell is to end by itself.
    """

    group: str
    name: str
    code: str
    causes: str = ""
    timeout: float = 60


_END = "Ends of one's own sandbox"
_FORGERY = "Forged messages"

# Loops of a class body: no name of the prelude is touched, and none is left.
ENDS = [
    Deadly(_END, "memory", "held = bytearray(1 << 30)", "out_of_memory"),
    Deadly(
        _END,
        "memory by files without a name",
        "fd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(1 << 20))",
        "out_of_memory",
    ),
    Deadly(
        _END,
        "memory by many empty files",
        """
os.mkdir("/tmp/many")
for number in range(facts["memory"] // 256):
    os.symlink("x", f"/tmp/many/{number}")""",
        "out_of_memory",
    ),
    Deadly(
        _END,
        "memory of many children",
        """
for _ in range(8):
    subprocess.Popen([sys.executable, "-c", "x = b'x' * (100 << 20); import time; time.sleep(60)"])
held = bytearray(100 << 20)
while True: held += bytes(1 << 20)""",
        "out_of_memory",
    ),
    Deadly(
        _END,
        "a bomb of forks",
        """
bomb = '''
import os, signal
while True:
    try:
        os.fork()
    except OSError:
        signal.pause()
'''
subprocess.Popen([sys.executable, "-c", bomb])
end = time.monotonic() + 30
while len(pids()) < facts["processes"] // 2 and time.monotonic() < end:
    pass
assert facts["processes"] // 2 <= len(pids()) <= facts["processes"]""",
    ),
    Deadly(
        _END,
        "the gateway killed",
        "os.kill(os.getppid(), 9); signal.pause()",
        "kernel_died out_of_memory",
    ),
    Deadly(_END, "the gateway stopped", "os.kill(os.getppid(), 19); signal.pause()", "timeout", 2),
    Deadly(_END, "every process killed", "os.kill(-1, 9); signal.pause()", "kernel_died"),
    Deadly(_END, "the kernel crashed", "ctypes.string_at(0)", "kernel_died"),
    Deadly(
        _END,
        "deaf to its timeout",
        """
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass""",
        "timeout",
        1,
    ),
    Deadly(
        _END,
        "all descriptors closed",
        "os.closerange(0, 300); time.sleep(60)",
        "timeout kernel_died sandbox_lost",
        2,
    ),
    Deadly(
        _END,
        "words for the terminal of whoever reads the error",
        """
try:
    write(f"/proc/{os.getppid()}/fd/2", "\\n\\033[2Jcleared")  # may be root's pipe
except PermissionError:
    pass
os._exit(125)""",
        "sandbox_lost",
    ),
    Deadly(
        _END,
        "a message of 100 MB",
        """
from IPython.display import display
display({"text/plain": "x" * (100 << 20)}, raw=True)""",
        "out_of_memory",
    ),
]

_KERNEL = """
kernel = get_ipython().kernel
parent = kernel.get_parent()
def say(kind, content, parent=parent):
    kernel.session.send(kernel.iopub_socket, kind, content, parent=parent)
"""

FORGERIES = {
    "its own end": 'say("status", {"execution_state": "idle"})',
    "its own reply": """
reply = {"status": "ok", "execution_count": 10**30, "user_expressions": [], "payload": 1}
kernel.session.send(kernel.shell_stream, "execute_reply", reply, parent, kernel._parent_ident)""",
    "a dead kernel": 'say("status", {"execution_state": "dead"}, {})',
    "a restart": 'say("status", {"execution_state": "restarting"}, {})',
    "a summary of nonsense": """
say("display_data", {"metadata": 1, "data": {"application/vnd.kernelbroker.summary+json": {
    "execution_time": "long", "variables": {"a": [1]}, "variables_dropped": -5, "files": 7}}})""",
    "a report that nobody asked for": """
say("display_data", {"metadata": {}, "data": {"application/vnd.kernelbroker.report+json": {
    "dataframe": {"shape": [10**30, -1], "columns": 5, "preview": "x"}}}})""",
    "content of the wrong kind": """
for content in ([], "text", None, 5, {"data": []}, {"data": {"image/png": 7}}, {"name": 1, "text": {}}):
    for kind in ("stream", "display_data", "execute_result", "error", "clear_output", "status", ""):
        say(kind, content)""",
    "other people's ids": """
for name in ("msg_id", "session"):
    header = {**parent["header"], name: "1"}
    say("stream", {"name": "stdout", "text": "forged"}, {**parent, "header": header})""",
    "frames that are no message": """
almost = [b"x", b"<IDS|MSG>", b"", b"{", b"[]", b"1", b""]
for frames in ([b""], [b"\\xff" * 999] * 9, [b"<IDS|MSG>"] * 7, almost):
    kernel.iopub_socket.send_multipart(frames)""",
    "deep nesting": """
frames = kernel.session.serialize(kernel.session.msg("display_data", {}, parent))
frames[-1] = b"[" * 500_000
kernel.iopub_socket.send_multipart(frames)""",
    "cells of its own, past the broker": """
from ipykernel.connect import get_connection_file
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=get_connection_file())
client.load_connection_file()
client.start_channels(stdin=False, hb=False)
for _ in range(20):
    client.execute("forged = 1")
client.stop_channels()""",
    "a flood": """
for number in range(5_000):
    say("stream", {"name": "stdout", "text": "x" * 100})""",
}


def all_deadly() -> list[Deadly]:
    """The whole table."""
    return ENDS + [
        Deadly(_FORGERY, name, _KERNEL + code, timeout=3) for name, code in FORGERIES.items()
    ]
