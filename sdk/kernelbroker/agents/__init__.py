"""Façades for agents: one request and one result for code in every language and kind of sandbox.

    from kernelbroker.agents import ExecutionRequest, SandboxManager

    async with SandboxManager("alice") as manager:
        result = await manager.execute(ExecutionRequest("print(1 + 1)"))
        print(result.stdout)

`ExecutionEngine` takes actions of an agent's plan, and `run_code` is a tool for models.
"""

from ..agent_workspace import AgentWorkspace
from ..protocol.findings import Language
from ..risk.unified import RiskLevel
from .browser_router import BrowserAction, BrowserResult, BrowserRouter
from .engine import Action, ActionResult, ExecutionEngine
from .manager import SandboxManager
from .models import ExecutionRequest, ExecutionResult, SandboxType
from .tool import (
    RUN_CODE_SCHEMA,
    ToolResult,
    get_risk_level,
    requires_confirmation_for,
    run_code,
)

__all__ = [
    "RUN_CODE_SCHEMA",
    "Action",
    "ActionResult",
    "AgentWorkspace",
    "BrowserAction",
    "BrowserResult",
    "BrowserRouter",
    "ExecutionEngine",
    "ExecutionRequest",
    "ExecutionResult",
    "Language",
    "RiskLevel",
    "SandboxManager",
    "SandboxType",
    "ToolResult",
    "get_risk_level",
    "requires_confirmation_for",
    "run_code",
]
