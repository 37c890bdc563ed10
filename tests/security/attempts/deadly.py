"""Attempts that end their own kernel, or use up a resource, without an effect on other sandboxes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadly:
    """One line of the table.

    Attributes:
        group: the heading under which docs/security.md counts it.
        causes: the possible causes in the result; empty if the cell succeeds.
        timeout: seconds; generous if the cell should end by itself.
    """

    group: str
    name: str
    code: str
    causes: str = ""
    timeout: float = 60


_END = "Ending the own sandbox"
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

# A log in the workspace tells what was sent, since the cell's own result may be a forgery: a dot for each
# message, and a `!` where sending it failed.
SENT = ".sent"
SPEAK_FOR_THE_KERNEL = """
import json
kernel = get_ipython().kernel
parent = kernel.get_parent()
shell = kernel.shell_stream
client = kernel._get_shell_context_var(kernel._shell_parent_ident)
log = os.open("/data/.sent", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
def sending(send, *arguments):
    os.write(log, b".")
    try:
        send(*arguments)
    except BaseException:
        os.write(log, b"!")
        raise
def message(kind, content, parent=parent):
    "Its frames, whatever the content is: Session.send would refuse some."
    frames = kernel.session.serialize(kernel.session.msg(kind, {}, parent))
    return [*frames[:-1], json.dumps(content).encode()]
def publish(frames):
    sending(kernel.iopub_socket.send_multipart, frames)
def say(kind, content, parent=parent):
    publish(message(kind, content, parent))
def reply(content, parent=parent):
    sending(kernel.session.send, shell, "execute_reply", content, parent, client)
"""


@dataclass(frozen=True, slots=True)
class Forgery:
    """Messages that a cell sends in the name of its kernel.

    Attributes:
        messages: how many it sends.
    """

    name: str
    messages: int
    code: str
    group: str = _FORGERY


FORGERIES = [
    Forgery("its own end", 1, 'say("status", {"execution_state": "idle"})'),
    Forgery(
        "its own reply",
        1,
        'reply({"status": "ok", "execution_count": 10**30, "user_expressions": [], "payload": 1})',
    ),
    Forgery(
        "replies of the wrong kind",
        6,
        """
for content in ({}, {"status": 5}, {"status": "ok", "payload": [None]}, {"status": "error", "ename": []},
                {"status": "error", "traceback": {"a": 1}}, {"status": "aborted"}):
    reply(content)""",
    ),
    Forgery("a dead kernel", 1, 'say("status", {"execution_state": "dead"}, {})'),
    Forgery("a restart", 1, 'say("status", {"execution_state": "restarting"}, {})'),
    Forgery(
        "a summary of nonsense",
        1,
        """
sending(kernel.session.send, shell, "execute_reply", {"status": "ok"}, parent, client, None, False, None,
    {"kernelbroker": {
        "execution_time": "long", "variables": {"a": [1]}, "variables_dropped": -5, "files": 7}})""",
    ),
    Forgery(
        "a report that nobody asked for",
        1,
        """
say("display_data", {"metadata": {}, "data": {"application/vnd.kernelbroker.report+json": {
    "dataframe": {"shape": [10**30, -1], "columns": 5, "preview": "x"}}}})""",
    ),
    Forgery(
        "messages under the parent of the report",
        5,
        """
handlers = kernel.shell_handlers
real = handlers["execute_request"]
async def forging(stream, ident, request):
    handlers["execute_request"] = real
    say("stream", {"name": "stdout", "text": "forged"}, request)
    for content in ({"dataframe": 7}, [], {"dataframe": {"shape": "x"}, "value": 10**30}):
        data = {"application/vnd.kernelbroker.report+json": content}
        say("display_data", {"metadata": {}, "data": data}, request)
    say("status", {"execution_state": "idle"}, request)
    await real(stream, ident, request)
handlers["execute_request"] = forging""",
    ),
    Forgery(
        "content of the wrong kind",
        49,
        """
for content in ([], "text", None, 5, {"data": []}, {"data": {"image/png": 7}}, {"name": 1, "text": {}}):
    for kind in ("stream", "display_data", "execute_result", "error", "clear_output", "status", ""):
        say(kind, content)""",
    ),
    Forgery(
        "other people's ids",
        2,
        """
for name in ("msg_id", "session"):
    header = {**parent["header"], name: "1"}
    say("stream", {"name": "stdout", "text": "forged"}, {**parent, "header": header})""",
    ),
    Forgery(
        "frames that are no message",
        4,
        """
almost = [b"x", b"<IDS|MSG>", b"", b"{", b"[]", b"1", b""]
for frames in ([b""], [b"\\xff" * 999] * 9, [b"<IDS|MSG>"] * 7, almost):
    publish(frames)""",
    ),
    Forgery(
        "deep nesting",
        1,
        'publish([*message("display_data", {})[:-1], b"[" * 500_000])',
    ),
    Forgery(
        "cells of its own, past the broker",
        20,
        """
from ipykernel.connect import get_connection_file
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=get_connection_file())
client.load_connection_file()
client.start_channels(stdin=False, hb=False)
for _ in range(20):
    sending(client.execute, "forged = 1")
client.stop_channels()""",
    ),
    Forgery(
        "a flood",
        5_000,
        """
for number in range(5_000):
    say("stream", {"name": "stdout", "text": "x" * 100})""",
    ),
]


def all_deadly() -> list[Deadly | Forgery]:
    """Return the whole table."""
    return [*ENDS, *FORGERIES]
