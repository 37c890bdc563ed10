"""The APIs of forges, as far as pull requests need them. No I/O.

Sources: GitHub's REST API (2022-11-28), Gitea's swagger (v1), GitLab's REST API (v4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request to open. GitLab calls it a merge request."""

    repository: str
    head: str
    base: str
    title: str
    body: str


class ForgeKind(ABC):
    """How one kind of forge is asked.

    Attributes:
        user: the user name with which its git takes a token as the password.
    """

    user: str

    @abstractmethod
    def headers(self, token: str) -> dict[str, str]:
        """The header fields of a request."""

    def repository_path(self, repository: str) -> str:
        """Where a repository is described, with its `default_branch`."""
        return f"/repos/{quote(repository)}"

    def pulls_path(self, repository: str) -> str:
        """Where pull requests are opened."""
        return f"/repos/{quote(repository)}/pulls"

    def content(self, pull: PullRequest) -> dict[str, Any]:
        """What is sent to open one."""
        return {"title": pull.title, "body": pull.body, "head": pull.head, "base": pull.base}

    def opened(self, answer: Mapping[str, Any]) -> tuple[Any, Any]:
        """The number and the page of a pull request."""
        return answer.get("number"), answer.get("html_url")


class _GitHub(ForgeKind):
    user = "x-access-token"

    def headers(self, token: str) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }


class _Gitea(ForgeKind):
    user = "kernelbroker"

    def headers(self, token: str) -> dict[str, str]:
        return {"Authorization": f"token {token}", "Accept": "application/json"}


class _GitLab(ForgeKind):
    user = "oauth2"

    def headers(self, token: str) -> dict[str, str]:
        return {"PRIVATE-TOKEN": token, "Accept": "application/json"}

    def repository_path(self, repository: str) -> str:
        return f"/projects/{quote(repository, safe='')}"

    def pulls_path(self, repository: str) -> str:
        return f"/projects/{quote(repository, safe='')}/merge_requests"

    def content(self, pull: PullRequest) -> dict[str, Any]:
        return {
            "title": pull.title,
            "description": pull.body,
            "source_branch": pull.head,
            "target_branch": pull.base,
        }

    def opened(self, answer: Mapping[str, Any]) -> tuple[Any, Any]:
        return answer.get("iid"), answer.get("web_url")


FORGE_KINDS: Mapping[str, ForgeKind] = {
    "github": _GitHub(),
    "gitea": _Gitea(),
    "gitlab": _GitLab(),
}
