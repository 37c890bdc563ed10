"""The kernelbroker SDK: run code in warm, isolated Jupyter kernels, and stream its output.

    async with kernelbroker.connect() as broker:
        result = await broker.run("print(1 + 1)")

`kernelbroker.sync` has the same names without `await`, `SandboxClient` is the smallest client, and
`kernelbroker.events` has the types that streams yield. Names are imported when they are first used, so
that `import kernelbroker` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import agents, risk, sync
    from .agent_workspace import AgentWorkspace, NotOnThisMachine
    from .browser import Browser, BrowserError, BrowserPage
    from .client import Broker, connect
    from .code import Code
    from .code_errors import (
        CodeOperationError,
        CodeOperationValidationError,
        SandboxConnectionError,
        SandboxResourceError,
        SandboxSecurityError,
        SandboxTimeoutError,
    )
    from .coding_agent import AgentRun, CodingAgent
    from .dataframe_info import DataFrameInfo
    from .execution_handle import ExecutionHandle
    from .files import Files, Listing
    from .from_arrow import LossyTableWarning
    from .native_models import ModelReply, ModelRequest, ToolCall
    from .protocol import events
    from .protocol.coding_agents import AgentEvent, CodingAgentResult
    from .protocol.errors import (
        BadRequest,
        ConfirmationRequired,
        Conflict,
        ConnectionFailed,
        ConnectionLost,
        ExecutionFailed,
        Forbidden,
        InternalError,
        KernelBrokerError,
        MethodNotAllowed,
        NotFound,
        PolicyRefused,
        ProtocolError,
        RequestError,
        SessionGone,
        TooLarge,
        TooManyRequests,
        Unauthorized,
        Unavailable,
    )
    from .protocol.findings import Assessment, Finding
    from .protocol.messages import (
        CheckpointInfo,
        CheckpointSummary,
        ExecutionInfo,
        FileInfo,
        MissingVariable,
        ProjectOptions,
        SandboxLimits,
        SavedVariable,
        SessionInfo,
        WorkspaceInfo,
    )
    from .protocol.operations import CodeOperationResponse
    from .results import ExecutionResult
    from .rich_outputs import Display, Image
    from .risk import assess
    from .sandbox_client import SandboxClient, StreamChunk
    from .session import Session

    __version__: str

_MODULES = {
    ".agent_workspace": ("AgentWorkspace", "NotOnThisMachine"),
    ".client": ("Broker", "connect"),
    ".browser": ("Browser", "BrowserError", "BrowserPage"),
    ".code": ("Code",),
    ".code_errors": (
        "CodeOperationError",
        "CodeOperationValidationError",
        "SandboxConnectionError",
        "SandboxResourceError",
        "SandboxSecurityError",
        "SandboxTimeoutError",
    ),
    ".coding_agent": ("AgentRun", "CodingAgent"),
    ".dataframe_info": ("DataFrameInfo",),
    ".execution_handle": ("ExecutionHandle",),
    ".files": ("Files", "Listing"),
    ".from_arrow": ("LossyTableWarning",),
    ".native_models": ("ModelReply", "ModelRequest", "ToolCall"),
    ".protocol.coding_agents": ("AgentEvent", "CodingAgentResult"),
    ".protocol.errors": (
        "BadRequest",
        "ConfirmationRequired",
        "Conflict",
        "ConnectionFailed",
        "ConnectionLost",
        "ExecutionFailed",
        "Forbidden",
        "InternalError",
        "KernelBrokerError",
        "MethodNotAllowed",
        "MissingVariable",
        "NotFound",
        "PolicyRefused",
        "ProtocolError",
        "RequestError",
        "SessionGone",
        "TooLarge",
        "TooManyRequests",
        "Unauthorized",
        "Unavailable",
    ),
    ".protocol.findings": ("Assessment", "Finding"),
    ".protocol.messages": (
        "CheckpointInfo",
        "CheckpointSummary",
        "ExecutionInfo",
        "FileInfo",
        "MissingVariable",
        "ProjectOptions",
        "SandboxLimits",
        "SavedVariable",
        "SessionInfo",
        "WorkspaceInfo",
    ),
    ".protocol.operations": ("CodeOperationResponse",),
    ".results": ("ExecutionResult",),
    ".rich_outputs": ("Display", "Image"),
    ".risk": ("assess",),
    ".sandbox_client": ("SandboxClient", "StreamChunk"),
    ".session": ("Session",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = {"agents": ".agents", "events": ".protocol.events", "risk": ".risk", "sync": ".sync"}

__all__ = [
    "AgentEvent",
    "AgentRun",
    "AgentWorkspace",
    "Assessment",
    "BadRequest",
    "Broker",
    "Browser",
    "BrowserError",
    "BrowserPage",
    "CheckpointInfo",
    "CheckpointSummary",
    "Code",
    "CodeOperationError",
    "CodeOperationResponse",
    "CodeOperationValidationError",
    "CodingAgent",
    "CodingAgentResult",
    "ConfirmationRequired",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "DataFrameInfo",
    "Display",
    "ExecutionFailed",
    "ExecutionHandle",
    "ExecutionInfo",
    "ExecutionResult",
    "FileInfo",
    "Files",
    "Finding",
    "Forbidden",
    "Image",
    "InternalError",
    "KernelBrokerError",
    "Listing",
    "LossyTableWarning",
    "MethodNotAllowed",
    "MissingVariable",
    "ModelReply",
    "ModelRequest",
    "NotFound",
    "NotOnThisMachine",
    "PolicyRefused",
    "ProjectOptions",
    "ProtocolError",
    "RequestError",
    "SandboxClient",
    "SandboxConnectionError",
    "SandboxLimits",
    "SandboxResourceError",
    "SandboxSecurityError",
    "SandboxTimeoutError",
    "SavedVariable",
    "Session",
    "SessionGone",
    "SessionInfo",
    "StreamChunk",
    "TooLarge",
    "TooManyRequests",
    "ToolCall",
    "Unauthorized",
    "Unavailable",
    "WorkspaceInfo",
    "agents",
    "assess",
    "connect",
    "events",
    "risk",
    "sync",
]


def __getattr__(name: str) -> Any:
    if module := _MODULE_OF.get(name):
        value = getattr(import_module(module, __name__), name)
    elif module := _SUBMODULES.get(name):
        value = import_module(module, __name__)
    elif name == "__version__":
        from importlib.metadata import version

        value = version(__name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
