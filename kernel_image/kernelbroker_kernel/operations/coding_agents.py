"""The coding agents that a sandbox may have: their programs, options, and how they find their model.

They come from npm, in an image of their own or in `/data/shared/node_modules`, and print events as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import environment
from ..errors import Refused
from . import agent_events

CHOICE = "KERNELBROKER_CODING_AGENT"
"""The environment variable with the agent of an image or a template."""
AGENTS_MISSING, NO_MODEL, AGENT_FAILED = "agent_missing", "no_model", "agent_failed"
"""Error codes. After these a caller can go on with a model of its own."""
_PROBE_S = 10.0
_UNUSED_KEY = "added-by-the-broker"
"""Programs want a key, also where the broker's proxy adds the real one."""
_NOT_THERE = (502, 503, 504)
_NOT_ALLOWED = "is not in `allow`"
"""Said by the broker's proxy, which answers for servers that the sandbox may not reach."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A coding agent.

    Attributes:
        program: its name in PATH.
        package: its name at npm.
        base_urls: environment variables with the address of its model.
        keys: environment variables one of which lets it use its vendor's model.
        command: its arguments for a task and a model.
        prepare: its variables, from those that there are; may write its settings.
        translate: turns what it prints into events.
    """

    program: str
    package: str
    base_urls: tuple[str, ...]
    keys: tuple[str, ...]
    command: Callable[[str, str | None], list[str]]
    prepare: Callable[[Mapping[str, str], str | None], dict[str, str]]
    translate: agent_events.Translate


def chosen(name: str | None) -> tuple[str, Agent, str]:
    """The agent, by default that of the image or the first one that there is, and its program's path.

    Raises Refused.
    """
    wanted = name or os.environ.get(CHOICE)
    if wanted is not None and wanted not in AGENTS:
        known = ", ".join(AGENTS)
        raise Refused(
            "bad_request", f"there is no coding agent {wanted[:100]!r}; there are: {known}"
        )
    for each in AGENTS if wanted is None else [wanted]:
        if (path := _program(AGENTS[each].program)) is not None:
            return each, AGENTS[each], path
    what = "none of the coding agents " + ", ".join(AGENTS) if wanted is None else f"no {wanted}"
    raise Refused(
        AGENTS_MISSING,
        f"the sandbox has {what}: use the image of this agent, or install "
        f"{AGENTS[wanted or 'claude-code'].package} in the template's shared_data",
    )


def check_model(agent: Agent, environ: Mapping[str, str]) -> None:
    """Refuse an agent that has no model, or whose model's address does not answer. Raises Refused."""
    found = {name: environ[name] for name in agent.base_urls if environ.get(name)}
    if not found and not any(environ.get(name) for name in agent.keys):
        names = ", ".join((*agent.base_urls[:1], *agent.keys[:1]))
        raise Refused(
            NO_MODEL, f"{agent.package} knows no model: set {names} in the template or the session"
        )
    for name, url in found.items():
        if (reason := _unreachable(url)) is not None:
            raise Refused(NO_MODEL, f"the model at {name} does not answer: {reason}")


def _unreachable(url: str) -> str | None:
    """Why no server answers at an address; None if one does, whatever it answers."""
    try:
        urllib.request.urlopen(url, timeout=_PROBE_S).close()
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(500).decode(errors="replace").strip()
            if error.code in _NOT_THERE or _NOT_ALLOWED in said:
                return said or f"status {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))[:300]
    return None


def _program(name: str) -> str | None:
    shared = Path(environment.WORKSPACE, "shared/node_modules/.bin")
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(shared)))
    return shutil.which(name, path=path)


def _claude_command(task: str, model: str | None) -> list[str]:
    options = ["-p", "--output-format", "stream-json", "--verbose"]
    options += ["--dangerously-skip-permissions"]  # what it may do is what the sandbox may do
    return [*options, *(["--model", model] if model else []), "--", task]


def _claude_variables(environ: Mapping[str, str], _: str | None) -> dict[str, str]:
    variables = {
        "IS_SANDBOX": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if not any(environ.get(name) for name in AGENTS["claude-code"].keys):
        variables["ANTHROPIC_AUTH_TOKEN"] = _UNUSED_KEY
    return variables


def _gemini_command(task: str, model: str | None) -> list[str]:
    options = ["--output-format", "stream-json", "--yolo", "--skip-trust", f"--prompt={task}"]
    return [*options, *(["--model", model] if model else [])]


def _gemini_variables(environ: Mapping[str, str], _: str | None) -> dict[str, str]:
    # With an address of its own it finds no way to log in, unless its settings name one.
    settings = Path(environ.get("HOME", "/"), ".gemini", "settings.json")
    if not settings.exists() and not environ.get("GOOGLE_GENAI_USE_VERTEXAI"):
        settings.parent.mkdir(parents=True, exist_ok=True)
        login = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
        general = {"general": {"enableAutoUpdate": False}}
        private = {"privacy": {"usageStatisticsEnabled": False}}
        settings.write_text(json.dumps(login | general | private))
    variables = {"GEMINI_TELEMETRY_ENABLED": "false"}
    if not any(environ.get(name) for name in AGENTS["gemini-cli"].keys):
        variables["GEMINI_API_KEY"] = _UNUSED_KEY
    return variables


def _opencode_command(task: str, _: str | None) -> list[str]:
    return ["run", "--format", "json", "--auto", "--", task]


def _opencode_variables(environ: Mapping[str, str], model: str | None) -> dict[str, str]:
    if environ.get("OPENCODE_CONFIG_CONTENT") or environ.get("OPENCODE_CONFIG"):
        return {}
    kind = "anthropic" if environ.get("ANTHROPIC_BASE_URL") else "openai"
    if not model:
        raise Refused(NO_MODEL, "opencode needs the name of its model: give `model`")
    package = "@ai-sdk/anthropic" if kind == "anthropic" else "@ai-sdk/openai-compatible"
    base = environ.get(f"{kind.upper()}_BASE_URL", "").rstrip("/")
    base = base if kind == "openai" or base.endswith("/v1") else f"{base}/v1"
    key = environ.get(f"{kind.upper()}_API_KEY") or _UNUSED_KEY
    provider = {"npm": package, "name": "the model", "models": {model: {"name": model}}}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"internal/{model}",
        "small_model": f"internal/{model}",
        "provider": {"internal": provider | {"options": {"baseURL": base, "apiKey": key}}},
    }
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


AGENTS: dict[str, Agent] = {
    "claude-code": Agent(
        "claude",
        "@anthropic-ai/claude-code",
        ("ANTHROPIC_BASE_URL",),
        (
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
        ),
        _claude_command,
        _claude_variables,
        agent_events.claude_code,
    ),
    "gemini-cli": Agent(
        "gemini",
        "@google/gemini-cli",
        ("GOOGLE_GEMINI_BASE_URL",),
        ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"),
        _gemini_command,
        _gemini_variables,
        agent_events.gemini_cli,
    ),
    "opencode": Agent(
        "opencode",
        "opencode-ai",
        ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"),
        ("OPENCODE_CONFIG_CONTENT", "OPENCODE_CONFIG"),
        _opencode_command,
        _opencode_variables,
        agent_events.opencode,
    ),
}
