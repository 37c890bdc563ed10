"""The client without `await`: the same names and meaning as in `kernelbroker`.

    with kernelbroker.sync.connect() as broker:
        with broker.session() as session:
            for event in session.stream("print(1)"):
                ...
            result = session.run("x = 2", result_var="x")

Each broker has an event loop in a separate thread (see `loop_thread.py`), so this works in scripts, in
threads, and in notebooks, which run an event loop themselves. Callbacks run in the calling thread, except
coroutine functions, which run in the broker's thread. Ctrl-C ends the wait. The cell continues unless
`on_disconnect="interrupt"` is set.
"""

from .agent_workspace import AgentWorkspace
from .client import Broker, connect
from .execution_handle import ExecutionHandle
from .files import Files
from .sandbox_client import SandboxClient
from .session import Session

__all__ = [
    "AgentWorkspace",
    "Broker",
    "ExecutionHandle",
    "Files",
    "SandboxClient",
    "Session",
    "connect",
]
