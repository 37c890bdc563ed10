"""A real kernel of the image, driven over its own sockets, without a gateway."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from kernelbroker.protocol import events
from kernelbroker_kernel import contract

START = """
import sys
from kernelbroker_kernel import contract
contract.WORKSPACE = sys.argv.pop()
from kernelbroker_kernel.kernel import KernelApp
app = KernelApp.instance()
app.initialize(sys.argv[1:])
app.start()
"""


class Workspace(KernelManager):
    """Starts the kernel with a directory in the place of /data."""

    path: Path

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-c", START, "-f", "{connection_file}", str(self.path)]
        return KernelSpec(argv=argv, display_name="", language="python")


@dataclass
class Ran:
    reply: dict[str, Any]
    summaries: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    text: str = ""

    @property
    def summary(self) -> dict[str, Any]:
        (summary,) = self.summaries
        msgspec.convert(summary["variables"], list[events.Variable])
        msgspec.convert(summary["files"], list[events.FileChange])
        return summary

    @property
    def names(self) -> list[str]:
        return [variable["name"] for variable in self.summary["variables"]]


class Kernel:
    """Runs cells and gathers what they produced until the kernel is idle."""

    def __init__(self, client: BlockingKernelClient, workspace: Path) -> None:
        self._client = client
        self.workspace = workspace

    def run(self, code: str, *, silent: bool = False, metadata: Any = None, **asked: Any) -> Ran:
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        metadata = metadata if metadata is not None else {contract.METADATA_KEY: asked}
        request = self._client.session.msg("execute_request", content, metadata=metadata)
        self._client.shell_channel.send(request)
        request_id = request["header"]["msg_id"]
        ran = Ran({})
        while True:
            message = self._client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") != request_id:
                continue
            content = message["content"]
            if message["msg_type"] == "status":
                ran.statuses.append(content["execution_state"])
            if message["msg_type"] == "display_data":
                for mime, payload in content["data"].items():
                    if mime == contract.REPORT_MIME:
                        ran.reports.append(payload)
            elif message["msg_type"] == "error":
                ran.errors.append(content)
            elif message["msg_type"] == "stream":
                ran.text += content["text"]
            elif content.get("execution_state") == "idle":
                break
        while True:  # replies to what `wait_for_ready` asked may still be there
            reply = self._client.get_shell_msg(timeout=30)
            if reply["parent_header"].get("msg_id") == request_id:
                ran.reply = reply["content"]
                if (summary := reply["metadata"].get(contract.METADATA_KEY)) is not None:
                    ran.summaries.append(summary)
                return ran

    def configure(self, **settings: Any) -> dict[str, Any]:
        return self.run(contract.CONFIGURE_CODE, silent=True, configure=settings).reply

    def report(self, name: str, **asked: Any) -> list[dict[str, Any]]:
        ran = self.run(contract.REPORT_CODE, silent=True, report={"result_var": name, **asked})
        assert ran.reply["status"] == "ok"
        assert ran.summaries == []
        return ran.reports
