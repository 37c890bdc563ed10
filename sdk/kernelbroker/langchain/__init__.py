"""LangChain tools, a manager of sandboxes, and a backend for deepagents (extra `langchain`).

tools = create_sandbox_tools(broker)
agent = create_agent(model, tools, checkpointer=...)
await agent.ainvoke(question, {"configurable": {"thread_id": "alice"}})
"""

from typing import TYPE_CHECKING, Any

from .browser_tools import get_browser_tools
from .code_tools import get_code_operations_tools
from .manager import SandboxInfo, SandboxManager
from .run_code import create_run_code_tool
from .tools import create_sandbox_tools

if TYPE_CHECKING:
    from .deep_agents import KernelBrokerSandbox

__all__ = [
    "KernelBrokerSandbox",
    "SandboxInfo",
    "SandboxManager",
    "create_run_code_tool",
    "create_sandbox_tools",
    "get_browser_tools",
    "get_code_operations_tools",
]


def __getattr__(name: str) -> Any:
    if name == "KernelBrokerSandbox":  # needs deepagents, which most do not have
        from .deep_agents import KernelBrokerSandbox

        return KernelBrokerSandbox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
