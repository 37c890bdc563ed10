"""The time and the modules that `import kernelbroker` takes."""

from __future__ import annotations

import resource
import subprocess
import sys

import kernelbroker
import pytest

EXTRA_S = 0.1
RUNS = 4


def seconds(code: str) -> float:
    """The processor time of an import, which other processes hardly affect."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    "code",
    ["import kernelbroker", "from kernelbroker import connect, SandboxClient, sync, events"],
)
def test_import_time(code: str) -> None:
    """An import takes at most 0.1 s longer than its dependencies. The fastest of several runs counts."""
    dependencies, ours = [], []
    for _ in range(RUNS):
        dependencies.append(seconds("import msgspec, websockets.asyncio.client"))
        ours.append(seconds(code))
    assert min(ours) <= min(dependencies) + EXTRA_S


def test_import_loads_no_optional_modules() -> None:
    """The clients import neither the server nor pandas, pyarrow or a parser."""
    code = (
        "import sys, kernelbroker; from kernelbroker import connect, sync, SandboxClient, Session\n"
        "found = {'pandas', 'numpy', 'pyarrow', 'polars', 'tornado', 'tree_sitter', "
        "'kernelbroker_server', 'kernelbroker.risk', 'kernelbroker.cli'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", kernelbroker.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    """Each public name can be imported, and `dir` lists it."""
    assert getattr(kernelbroker, name) is not None
    assert name in dir(kernelbroker)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """An unknown name raises AttributeError; `__version__` exists."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kernelbroker.nothing  # type: ignore[attr-defined]
    assert kernelbroker.__version__
