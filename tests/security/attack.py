"""Makes all attempts of these tests, and counts them by the kind of sandbox: `make attack`.

    python -m tests.security.attack [ARGUMENTS OF PYTEST]

It fails if one succeeds (a hole), or if one could not be made in a jail, in a container or in gVisor. Pods
are counted if there is a cluster.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ALWAYS = ("local", "local-fork", "docker", "gvisor")
"""The kinds on which all attempts must be made."""
_HOST = "the host"
"""Attempts in no sandbox: controls, and what an agent may send."""


class Count:
    """A plugin of pytest that counts attempts.

    Attributes:
        made, holes, unsent: the attempts of each kind of sandbox.
    """

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.holes: defaultdict[str, list[str]] = defaultdict(list)
        self.unsent: defaultdict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        kind = str(parameters.get("kind", _HOST))
        if report.skipped:
            self.unsent[kind].append(item.nodeid)
        elif report.failed:
            self.holes[kind].append(item.nodeid)
        elif report.when == "call":
            self.made[kind] += 1
        return report

    def lines(self) -> list[str]:
        kinds = {*self.made, *self.holes, *self.unsent}
        found = [f"{'sandbox':16}{'held':>8}{'holes':>8}{'unsent':>8}"]
        found += [
            f"{kind:16}{self.made[kind]:8}{len(self.holes[kind]):8}{len(self.unsent[kind]):8}"
            for kind in sorted(kinds)
        ]
        found += [f"HOLE    {name}" for names in self.holes.values() for name in names]
        return found + [f"unsent  {name}" for kind in ALWAYS for name in self.unsent[kind]]

    @property
    def status(self) -> int:
        not_tried = any(self.unsent[kind] or not self.made[kind] for kind in ALWAYS)
        return int(any(self.holes.values()) or not_tried)


def main() -> int:
    count = Count()
    options = ["-p", "no:randomly", "-p", "no:cacheprovider", "-q", *sys.argv[1:]]
    pytest.main([str(Path(__file__).parent), *options], plugins=[count])
    print(*count.lines(), sep="\n")  # noqa: T201
    return count.status


if __name__ == "__main__":
    sys.exit(main())
