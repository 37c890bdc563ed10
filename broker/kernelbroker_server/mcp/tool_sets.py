"""The sets of tools that an operator chooses from."""

from __future__ import annotations

from collections.abc import Iterable

from .analysis_tools import ANALYSIS_TOOLS
from .browser_tools import BROWSER_TOOLS
from .code_tools import CODE_TOOLS, TABLE_PAGE
from .file_tools import FILE_TOOLS
from .project_tools import PROJECT_TOOLS
from .tool import ToolSpec

TOOL_SETS: dict[str, tuple[ToolSpec, ...]] = {
    "code": (*CODE_TOOLS, *FILE_TOOLS),
    "analysis": (*ANALYSIS_TOOLS, TABLE_PAGE, *FILE_TOOLS),
    "project": PROJECT_TOOLS,
    "browser": BROWSER_TOOLS,
}


def tools_of(names: Iterable[str]) -> list[ToolSpec]:
    """Return the tools of some sets, each once."""
    tools = {tool.name: tool for name in names for tool in TOOL_SETS[name]}
    return list(tools.values())
