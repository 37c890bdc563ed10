"""Detects the test framework of a project and its command, and gathers what the tests report."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Refused
from . import programs, project

FRAMEWORKS = ("pytest", "unittest", "node", "jest", "vitest", "go")
REPORTERS = Path(__file__).with_name("reporters")
MAX_FAILURES = 200
_MAX_PENDING = 1_000
_MAX_SHOWN = 64 * 1024
_OUTCOMES = {"passed": "passed", "failed": "failed", "error": "errors", "skipped": "skipped"}
_EXPECTED = {"xfailed": "skipped", "xpassed": "passed"}
"""Of tests that are expected to fail. Runners count them apart; who watches the tests sees the second."""
_SKIPPED_DIRECTORIES = frozenset({".git", "node_modules", ".venv", "venv", "__pycache__"})
_MAX_LOOKED_AT = 5_000


@dataclass(slots=True)
class Command:
    """How a framework is run.

    Attributes:
        report: what it writes to the report: `lines` of our own, `go`, or `jest` (one document, in a file).
        shown: the command line for people and policies.
    """

    argv: list[str]
    report: str
    shown: str


@dataclass(slots=True)
class Tests:
    """The tests that have ended, and those of them that were not announced yet.

    Attributes:
        expected: how many of the tests that are expected to fail have failed, and passed.
        finished: whether the runner said at its end that it has run all tests that it had found.
        running: the test that has begun last, until it ends.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OUTCOMES.values(), 0))
    expected: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False
    running: str | None = None

    def add(self, record: Any, root: Path) -> None:
        """Count a test. Records of another form are ignored: user code can write them as well."""
        if not isinstance(record, dict):
            return
        if isinstance(record.get("finished"), bool):
            self.finished = record["finished"]
        if isinstance(record.get("started"), str):
            self.running = record["started"][:1000]
        if not isinstance(record.get("test"), str):
            return
        outcome = record.get("outcome")
        if not isinstance(outcome, str):
            return
        if outcome in _EXPECTED:
            self.expected[outcome] = self.expected.get(outcome, 0) + 1
            outcome = _EXPECTED[outcome]
        elif outcome in _OUTCOMES:
            self.counts[_OUTCOMES[outcome]] += 1
        else:
            return
        seconds = record.get("seconds")
        known = seconds if isinstance(seconds, int | float) else 0.0
        test = record["test"][:1000]
        if test == self.running:
            self.running = None
        if len(self.pending) < _MAX_PENDING:
            self.pending.append({"test": test, "outcome": outcome, "seconds": known})
        if outcome in ("failed", "error") and len(self.failures) < MAX_FAILURES:
            line = record.get("line")
            self.failures.append(
                {
                    "test": test,
                    "file": _relative(str(record.get("file", "")), root)[:1000],
                    "line": line if type(line) is int else None,
                    "message": str(record.get("message", ""))[:2_000],
                    "output": str(record.get("output", ""))[:8_000],
                }
            )

    def announce(self) -> dict[str, Any] | None:
        """The tests since the last call; None if there are none."""
        if not self.pending:
            return None
        tests, self.pending = self.pending, []
        return {"tests": tests, **self.counts}


def command(framework: str, target: str | None, report: str) -> tuple[str, Command]:
    """The framework, which is detected for `auto`, and its command. Raises Refused.

    Args:
        report: a path that the command can write its report to.
    """
    root = project.root()
    if target is not None:
        if target.startswith("-"):
            raise Refused("bad_request", "the target is a path or a test, not an option")
        project.names(target.partition("::")[0])
    found = detect(root, target) if framework == "auto" else framework
    targets = [] if target is None else [target]
    if found == "pytest":
        if importlib.util.find_spec("pytest") is None:
            raise Refused(
                "missing_program",
                "the sandbox has no pytest: install it with session.install('pytest'), an image "
                "that has it, or framework='unittest'",
            )
        options = ["-p", "kernelbroker_pytest", "-p", "no:cacheprovider", "--color=no"]
        return found, _python(["-m", "pytest", *options], targets, "pytest")
    if found == "unittest":
        return found, _python(
            [str(REPORTERS / "kernelbroker_unittest.py")], targets, "python -m unittest"
        )
    if found == "node":
        programs.find("node")
        reporter = f"--test-reporter={REPORTERS / 'kernelbroker_node.mjs'}"
        options = ["--test", reporter, "--test-reporter-destination=stdout"]
        return found, Command(["node", *options, *targets], "lines", "node --test")
    if found in ("jest", "vitest"):
        program = root / "node_modules" / ".bin" / found
        if not program.exists():
            raise Refused(
                "missing_program", f"{found} is not installed in the project: run_command('npm ci')"
            )
        verb = ["run", "--reporter=default", "--reporter=json"] if found == "vitest" else ["--json"]
        argv = ["node", str(program), *verb, f"--outputFile={report}", *targets]
        return found, Command(argv, "jest", found)
    if found == "go":
        programs.find("go")
        return found, Command(
            ["go", "test", "-json", *(targets or ["./..."])], "go", "go test ./..."
        )
    raise Refused(
        "bad_request", f"framework is auto, {', '.join(FRAMEWORKS)}; not {framework[:100]!r}"
    )


def detect(root: Path, target: str | None = None) -> str:
    """The framework of a project. Raises Refused if there are no signs of any."""
    suffix = Path((target or "").partition("::")[0]).suffix
    if suffix != ".py" and (found := _of_node(root)):
        return found
    if suffix in (".js", ".mjs", ".cjs", ".ts"):
        return "node"
    if (root / "go.mod").is_file() and suffix != ".py":
        return "go"
    names = [path.name for path in _files(root)]
    has_tests = any(
        n.endswith("_test.py") or (n.startswith("test") and n.endswith(".py")) for n in names
    )
    if "conftest.py" in names or "pytest.ini" in names:
        return "pytest"
    if has_tests or suffix == ".py":
        return "pytest" if importlib.util.find_spec("pytest") is not None else "unittest"
    if any(".test." in name for name in names):
        return "node"
    raise Refused(
        "not_found", "the project has no tests of a known framework; name it, or use run_command"
    )


def _of_node(root: Path) -> str | None:
    try:
        text = (root / "package.json").read_bytes()[: 1024**2]
        package = json.loads(text)
        script = str(package.get("scripts", {}).get("test", ""))
        needed = {*package.get("devDependencies", {}), *package.get("dependencies", {})}
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    for name in ("vitest", "jest"):
        if name in script or name in needed:
            return name
    return "node" if "node" in script and "--test" in script else None


def _files(root: Path) -> Iterator[Path]:
    folders, seen = [root], 0
    for folder in folders:
        try:
            entries = sorted(folder.iterdir())
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > _MAX_LOOKED_AT:
                return
            if entry.is_symlink():
                continue
            if entry.is_dir():
                if entry.name not in _SKIPPED_DIRECTORIES:
                    folders.append(entry)
            else:
                yield entry


def _python(options: list[str], targets: list[str], shown: str) -> Command:
    return Command([sys.executable, *options, *targets], "lines", shown)


def of_jest(document: bytes) -> Iterable[dict[str, Any]]:
    """The records in a report of jest or vitest."""
    try:
        files = json.loads(document)["testResults"]
        for each in files:
            tests = each.get("assertionResults", [])
            if not tests and each.get("status") == "failed":
                message = str(each.get("message", ""))
                yield {
                    "test": each["name"],
                    "outcome": "error",
                    "file": each["name"],
                    "message": message,
                }
            for test in tests:
                outcome = {"passed": "passed", "failed": "failed"}.get(
                    test.get("status"), "skipped"
                )
                text = "\n".join(map(str, test.get("failureMessages") or []))
                yield {
                    "test": test.get("fullName") or test.get("title", ""),
                    "outcome": outcome,
                    "seconds": (test.get("duration") or 0) / 1000,
                    "file": each["name"],
                    "line": (test.get("location") or {}).get("line")
                    or _line_in(text, each["name"]),
                    "message": text.partition("\n")[0],
                    "output": text,
                }
        yield {"finished": True}
    except (ValueError, KeyError, TypeError, AttributeError):
        return


def _line_in(stack: str, path: str) -> int | None:
    """The line of a file that a stack names first."""
    found = re.search(re.escape(path) + r":(\d{1,9})", stack)
    return None if found is None else int(found[1])


def _relative(path: str, root: Path) -> str:
    path = path.removeprefix("file://")
    for base in (str(root), str(root.resolve()), project.SHOWN_ROOT):
        if path.startswith(f"{base}/"):
            return path[len(base) + 1 :]
    return path
