"""The sections of the configuration file for the surfaces: the protocols of other clients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from .config_sections import _Section


class McpSettings(_Section):
    """The MCP server. Its addresses are /mcp, and /mcp/code, /mcp/analysis and /mcp/project for one set."""

    enabled: bool | None = None
    """Serve MCP. If not set, it is served if the extra `mcp` is installed."""
    tool_sets: tuple[Literal["code", "analysis", "project", "browser"], ...] = ("code", "analysis")
    """The sets of tools at /mcp. With `analysis` alone no code can be run except by the analyses.
    `project` has the operations on a project, `browser` those of a browser."""
    language: Literal["auto", "en", "zh"] = "auto"
    """The language of analyses; `auto` by the script of the question and the columns."""
    model: str | None = Field(default=None, pattern="^[^:]+:.+$")
    """Writes code for analyses that are called without code: `anthropic:MODEL` or `openai:MODEL`, whose
    libraries must be installed and take key and address from their environment variables; or
    `module:function`, a function of a prompt. If not set, an older client's own model is asked, if lent."""
    task_after: float = Field(default=5, gt=0)
    """A call that runs longer becomes a task, for clients that support tasks."""
    unnamed_idle_timeout: float = Field(default=300, gt=0)
    """After how many seconds without a call a session closes that a call has opened without asking for one,
    and that no other call has used. Afterwards it is `sessions.idle_timeout`."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may name, in addition to those of the loopback and `host`. If it is empty
    and the broker listens on other addresses than loopback, all names are allowed."""


_E2B_TEMPLATES = ("base", "code-interpreter-v1")
"""The names that programs for E2B use."""


class E2bSettings(_Section):
    """E2B's protocol, for programs that use E2B's clients. See docs/e2b.md."""

    enabled: bool = True
    """Serve it, under /e2b and for requests with the headers of E2B's clients."""
    templates: dict[str, str] = Field(default={}, validate_default=True)
    """Names that E2B's users give templates, with the names of templates of this broker. `base` and
    `code-interpreter-v1` mean `default` if they are not set. Names of this broker's templates are valid
    too."""
    domains: tuple[str, ...] = ("localhost",)
    """Domains below which each port of each sandbox has a host name, such as 3000-ID.localhost. The first
    one is named to clients, which use it for `get_host`."""

    @field_validator("templates")
    @classmethod
    def _with_defaults(cls, templates: dict[str, str]) -> dict[str, str]:
        return {**dict.fromkeys(_E2B_TEMPLATES, "default"), **templates}


class GrpcSettings(_Section):
    """The gRPC service `SandboxCodeService`, on a port of its own. See docs/grpc.md."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """Serve it on this port of `host`, such as 50051, with the certificate of `tls` if there is one. If not
    set, it is off. It needs the extra `grpc`."""


class JupyterSettings(_Section):
    """The Jupyter kernel server at /jupyter."""

    enabled: bool = True
    """Let Jupyter's clients use sessions as kernels."""


class BrowserSettings(_Section):
    """A browser outside of the sandboxes. Those in sandboxes are `browser` of templates."""

    endpoint: str | None = Field(default=None, pattern="^(https?|wss?)://.+$")
    """The address of the DevTools protocol of a browser that you run, such as http://127.0.0.1:9222. Every
    tenant can open pages there, with the network that it has. See docs/browser.md."""
