"""Counts how many tests of other projects pass against a broker of this checkout.

    .venv/bin/python benchmarks/clients/suites.py [NAME ...] [--verbose]

It fetches nothing. A suite is run if a variable of the environment names its checkout, and is skipped
otherwise:

jupyter-server     JUPYTER_SERVER_TESTS: Jupyter Server's sources. The tests of its API for kernels,
                   kernelspecs and sessions.
e2b                E2B_TESTS: `packages/python-sdk` of e2b-dev/E2B. The tests of sandboxes.
e2b-js             E2B_JS_TESTS: `packages/js-sdk` of e2b-dev/E2B, with its packages.
code-interpreter   CODE_INTERPRETER_TESTS: `python` of e2b-dev/code-interpreter.
code-interpreter-js  CODE_INTERPRETER_JS_TESTS: `js` of e2b-dev/code-interpreter, with its packages.
langchain          LANGCHAIN_TESTS: a directory with a test class of `langchain_tests` for
                   `KernelBrokerSandbox`.

JUPYTER_SERVER_PYTHON, E2B_PYTHON and so on name the Python that has the suite's packages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from kernelbroker_side import running_broker  # noqa: E402

COUNTED = re.compile(r"(\d+) (passed|failed|error|skipped|xfailed|xpassed)")
"""In the last line of pytest, and in the line `Tests` of vitest."""
_PORTS = '{"default": {"ports": true}}'


@dataclass(frozen=True)
class Suite:
    """Tests of another project.

    Attributes:
        tests: what is run, relative to the checkout.
        options: of pytest; None if vitest runs the tests.
        environ: of the tests; `{url}` and `{token}` are the broker's.
        goal: how many tests shall pass, of how many.
    """

    tests: tuple[str, ...]
    options: tuple[str, ...] | None = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    goal: str = ""


_E2B = {
    "E2B_API_URL": "{url}/e2b",
    "E2B_SANDBOX_URL": "{url}",
    "E2B_API_KEY": "{token}",
    "E2B_ACCESS_TOKEN": "{token}",
}
SUITES = {
    "jupyter-server": Suite(
        tuple(
            f"tests/services/{part}/test_api.py" for part in ("kernels", "kernelspecs", "sessions")
        ),
        ("-p", "jupyter_server_plugin"),
        goal="20 of 42, as a remote Jupyter Server",
    ),
    "e2b": Suite(
        ("tests/sync/sandbox_sync", "tests/async/sandbox_async"), environ=_E2B, goal="276 of 316"
    ),
    "e2b-js": Suite(("tests/sandbox",), None, _E2B, "218 of 291"),
    "code-interpreter": Suite(("tests",), environ=_E2B, goal="116 of 145"),
    "code-interpreter-js": Suite(("tests",), None, _E2B, "51 of 72"),
    "langchain": Suite((".",), goal="86 of 86"),
}


def checkout_of(name: str) -> Path | None:
    """Where a suite is; None if no variable of the environment says so."""
    found = os.environ.get(f"{variable(name)}_TESTS")
    return Path(found).resolve() if found else None


def variable(name: str) -> str:
    return name.replace("-", "_").upper()


async def run(name: str, *, verbose: bool) -> dict[str, int]:
    """Run a suite against a fresh broker. Returns how many tests had each outcome."""
    suite, checkout = SUITES[name], checkout_of(name)
    assert checkout is not None
    async with running_broker(
        warm=2, KERNELBROKER_POOL__MAX_SIZE="16", KERNELBROKER_TEMPLATES=_PORTS
    ) as broker:
        known = {"url": broker.url, "token": broker._address.token or ""}
        environ = {
            **os.environ,
            "KERNELBROKER_URL": known["url"],
            "KERNELBROKER_TOKEN": known["token"],
            "PYTHONPATH": str(HERE),
            **{key: text.format(**known) for key, text in suite.environ.items()},
        }
        process = await asyncio.create_subprocess_exec(
            *command(name, verbose=verbose),
            cwd=checkout,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode(errors="replace")
    print(output if verbose else "\n".join(failures(output)))
    if not (counts := counted(output)):
        raise SystemExit(f"{name}: nothing was run:\n{output[-2000:]}")
    return counts


def command(name: str, *, verbose: bool) -> list[str]:
    suite = SUITES[name]
    if suite.options is None:
        return ["npx", "--no-install", "vitest", "run", *suite.tests]
    python = os.environ.get(f"{variable(name)}_PYTHON", sys.executable)
    options = ["-q", "-rfE", "-p", "no:cacheprovider", "--color", "no"]
    options += ["--tb", "short" if verbose else "no", *suite.options]
    return [python, "-m", "pytest", *options, *suite.tests]


def counted(output: str) -> dict[str, int]:
    """How many tests had each outcome, as the last summary says."""
    for line in reversed(output.splitlines()):
        if found := {outcome: int(count) for count, outcome in COUNTED.findall(line)}:
            return found
        if line.lstrip().startswith("Tests "):
            break
    return {}


def failures(output: str) -> list[str]:
    return [
        line[:160]
        for line in output.splitlines()
        if line.lstrip().startswith(("FAILED", "ERROR", "FAIL "))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)} (all)")
    parser.add_argument("--verbose", action="store_true", help="the tests' whole output")
    options = parser.parse_args()
    if unknown := set(options.names) - set(SUITES):
        parser.error(
            f"there is no suite {', '.join(sorted(unknown))}: choose of {', '.join(SUITES)}"
        )
    for name in options.names or SUITES:
        if checkout_of(name) is None:
            print(f"{name}: skipped; {variable(name)}_TESTS names no checkout")
            continue
        counts = asyncio.run(run(name, verbose=options.verbose))
        total = sum(counts.values()) - counts.get("skipped", 0)
        goal = SUITES[name].goal
        print(f"{name}: {counts.get('passed', 0)} of {total} passed (goal {goal}); {counts}")


if __name__ == "__main__":
    main()
