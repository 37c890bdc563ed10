"""Programs for the last release work with this version: no public name, parameter or field is lost.

docs/versions.md has the policy. `released.txt` has the facts of the last release, `deprecated.txt` what a
later major version may lose.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.public_api.compare import broken_promises, parse_deprecations, parse_version
from tests.public_api.surface import RELEASED, facts, of_function, source_version

HERE = Path(__file__).parent
DEPRECATED = (HERE / "deprecated.txt").read_text()
ROOT = HERE.parents[1]


def released() -> tuple[str, set[str]]:
    """The version of the last release, and its facts."""
    first, *lines = RELEASED.read_text().splitlines()
    return first.removeprefix("# kernelbroker "), set(lines)


def test_no_promise_is_broken() -> None:
    """What programs for the last release use is there, and requires nothing more."""
    _, before = released()
    now = parse_version(source_version())
    broken = broken_promises(before, facts(), parse_deprecations(DEPRECATED), now)
    assert broken == [], "this breaks programs: see docs/versions.md"


def test_all_packages_have_one_version() -> None:
    """The three packages have one version, and require each other in it."""
    own = re.escape(source_version())
    for file in ("broker/pyproject.toml", "kernel_image/pyproject.toml"):
        assert re.search(f'^version = "{own}"$', (ROOT / file).read_text(), re.MULTILINE), file
    texts = "".join((ROOT / each).read_text() for each in ("setup.cfg", "broker/pyproject.toml"))
    required = re.findall(r"kernelbroker[\w-]*(?:\[[\w,]+\])?==([\w.]+)", texts)
    assert len(required) >= 4
    assert set(required) == {source_version()}


def test_the_changelog_tells_of_this_version() -> None:
    """The changelog has a section for this version, and names what is deprecated."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {source_version()}\n" in changelog
    for fact in parse_deprecations(DEPRECATED):
        name = re.split(r"[ (]", fact)[1].rpartition(".")[2]
        assert name in changelog.partition("### Deprecated")[2], fact


def test_the_last_release_is_not_newer() -> None:
    """The facts are those of this version or of an earlier one, and of something."""
    before, found = released()
    assert parse_version(before) <= parse_version(source_version())
    assert len(found) > 1000
    for fact in (
        "sdk kernelbroker.Session.run(code) at 0",
        "sdk kernelbroker.Session.run(timeout) optional",
        "sdk kernelbroker.events.Stdout.content",
        "sdk kernelbroker.NotFound is a RequestError",
        "sdk kernelbroker.sync.connect",
        "api GET /api/v1/sessions",
        "command kernelbroker exec --session",
        "command kernelbroker-server doctor --json",
        "setting pool.max_size",
    ):
        assert fact in found


def before(code: str, timeout: float = 1, *, keep: bool = False) -> str:
    return f"{code}{timeout}{keep}"


def added(code: str, timeout: float = 1, more: int = 0, *, keep: bool = False) -> str:
    return f"{code}{timeout}{more}{keep}"


def renamed(code: str, limit: float = 1, *, keep: bool = False) -> str:
    return f"{code}{limit}{keep}"


def demanding(code: str, timeout: float, *, keep: bool = False) -> str:
    return f"{code}{timeout}{keep}"


def required(code: str, timeout: float = 1, *, who: str, keep: bool = False) -> str:
    return f"{code}{timeout}{keep}{who}"


def reordered(timeout: float = 1, code: str = "", *, keep: bool = False) -> str:
    return f"{code}{timeout}{keep}"


def other_answer(code: str, timeout: float = 1, *, keep: bool = False) -> int:
    return len(f"{code}{timeout}{keep}")


async def awaited(code: str, timeout: float = 1, *, keep: bool = False) -> str:
    return f"{code}{timeout}{keep}"


@pytest.mark.parametrize(
    ("function", "broken"),
    [
        (before, []),
        (added, []),
        (renamed, ["f(timeout) at 1", "f(timeout) optional"]),
        (demanding, ["f(timeout) optional", "f(timeout) required"]),
        (required, ["f(who) required"]),
        (reordered, ["f(code) at 0", "f(timeout) at 1"]),
        (other_answer, ["f returns str"]),
        (awaited, ["f is not awaited"]),
    ],
)
def test_changes_of_a_function(function: Callable[..., Any], broken: list[str]) -> None:
    """Optional parameters may be added; nothing may be renamed, moved, demanded or returned otherwise."""
    earlier, now = ({"f", *of_function("f", each)} for each in (before, function))
    found = broken_promises(earlier, now, {}, (1, 1, 0))
    assert [each.partition(": ")[2] for each in found] == broken


@pytest.mark.parametrize(
    ("earlier", "now", "count"),
    [
        ({"api GET /a", "api GET /b"}, {"api GET /a"}, 1),
        (
            {"api answer A.x", "api answer A.x always"},
            {"api answer A.x", "api answer A.x sometimes"},
            1,
        ),
        ({"api request A.x", "api request A.x optional"}, {"api request A.x"}, 1),
        ({"api request A"}, {"api request A", "api request A.x", "api request A.x required"}, 1),
        ({"api request A.x", "api request A.x required"}, {"api request A.x"}, 0),
        ({"api GET /a"}, {"api GET /a", "api GET /a query q required"}, 1),
        (set[str](), {"api GET /new", "api GET /new query q required"}, 0),
        ({"setting a"}, {"setting a", "setting a.b", "setting a.b required"}, 1),
    ],
)
def test_changes_of_the_api(earlier: set[str], now: set[str], count: int) -> None:
    """Lost routes and fields are breaks, and so is what a request must have from now on."""
    assert len(broken_promises(earlier, now, {}, (1, 1, 0))) == count


def test_deprecations() -> None:
    """What was announced in an earlier major version may be removed in a new one, with all that it has."""
    announced = parse_deprecations("# a comment\n1.2.0 2.0.0 sdk m.f\n")
    earlier = {"sdk m.f", "sdk m.f(x) at 0", "sdk m.g"}
    assert len(broken_promises(earlier, {"sdk m.g"}, announced, (1, 9, 0))) == 2
    assert broken_promises(earlier, {"sdk m.g"}, announced, (2, 0, 0)) == []
    for line in ("1.2.0 1.3.0 sdk m.f", "1.2.0 2.1.0 sdk m.f", "1.2 2.0 sdk m.f"):
        with pytest.raises(ValueError, match=r"sdk m\.f|is no version"):
            parse_deprecations(line)
