"""The sections of templates: named recipes for sandboxes, and the profiles that they can start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic import ByteSize, Field

from .config_sections import PoolSettings, SandboxSettings

BackendName: TypeAlias = Literal["local", "docker", "kubernetes"]
Profile: TypeAlias = Literal["strict", "standard", "code", "browser"]

_PACKAGES_AND_CODE = (
    # PyPI
    "pypi.org",
    "files.pythonhosted.org",
    # npm
    "registry.npmjs.org",
    # GitHub: pages and Git, the API, archives, single files, releases, large files
    "github.com",
    "api.github.com",
    "codeload.github.com",
    "raw.githubusercontent.com",
    "objects.githubusercontent.com",
    "release-assets.githubusercontent.com",
    "media.githubusercontent.com",
)

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "strict": {
        "network": "none",
        "cpus": 1,
        "memory": "2GiB",
        "timeout": 120,
        "file_size": "10MiB",
    },
    "standard": {
        "network": "allowlist",
        "allow": _PACKAGES_AND_CODE,
        "cpus": 2,
        "memory": "4GiB",
        "timeout": 300,
        "file_size": "10MiB",
    },
    "code": {
        "image": "kernelbroker-code",
        "network": "allowlist",
        "allow": _PACKAGES_AND_CODE,
        "forges": ("*",),
        "cpus": 2,
        "memory": "4GiB",
        "processes": 500,
        "timeout": 900,
        "tmp_size": "500MiB",
        "workspace_size": "5GiB",
        "workspace_files": 500_000,
        "imports": (),
    },
    "browser": {
        "network": "allowlist",
        "allow": _PACKAGES_AND_CODE,
        "cpus": 2,
        "memory": "4GiB",
        "tmp_size": "512MiB",  # profile and cache
        "timeout": 300,
        "browser": True,
    },
}
"""Settings of a template, in place of those of [sandbox]. All sandboxes run without capabilities."""


class TemplateSettings(SandboxSettings):
    """A named recipe for sandboxes. Keys that are not set are taken from [sandbox] and [pool]."""

    profile: Profile | None = None
    """Start from a preset, in place of [sandbox]; the template's own keys win. `strict`: no network, 1 cpu,
    2 GiB, 120 s, files to 10 MiB. `standard`: the hosts of PyPI, npm and GitHub, 2 cpus, 4 GiB, 300 s,
    files to 10 MiB. `code`, for projects: the image kernelbroker-code, the same hosts, all of code.forges,
    2 cpus, 4 GiB, 900 s, 5 GiB of files. `browser`: as
    `standard`, with a browser, and without the limit of a file."""
    backend: BackendName | None = None
    """The kind of its sandboxes; the top-level `backend` if not set."""
    runtime: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The engine's runtime for its containers, or the RuntimeClass of its Pods; docker.runtime or
    kubernetes.runtime_class if not set. Not with backend = "local"."""
    image: str | None = None
    """The image of its containers or Pods; docker.image or kubernetes.image if not set. The local backend
    ignores it."""
    timeout: float | None = Field(default=None, gt=0)
    """How long a cell may run at most, in place of sessions.max_timeout. A cell whose client asks for no
    timeout gets this or sessions.default_timeout, whichever is less."""
    file_size: ByteSize | None = Field(default=None, gt=0)
    """The largest file that a cell may write or a client may upload. If not set, cells can write files as
    large as workspace_size, and limits.file is the limit of uploads."""
    browser: bool = False
    """Sessions may use a browser: `session.browser`. Containers then have docker.browser_image, unless
    `image` is set; jails use the machine's Chromium. See docs/browser.md."""
    pool: PoolSettings = PoolSettings()
    """The pool of its sandboxes."""
