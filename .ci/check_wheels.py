"""Checks the three wheels: each holds its own package with all data files and nothing else.

The SDK's wheel must also install and import in an environment that has nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
DISTRIBUTIONS = {
    "kernelbroker": (ROOT, ROOT / "sdk" / "kernelbroker"),
    "kernelbroker_server": (ROOT / "broker", ROOT / "broker" / "kernelbroker_server"),
    "kernelbroker_kernel": (ROOT / "kernel_image", ROOT / "kernel_image" / "kernelbroker_kernel"),
}
"""By the first part of the wheel's name: the project's directory, and that of its package."""
NOT_COPIED = (".*", "__pycache__", "build", "dist", "*.egg-info")
SITE = "kernelbroker_server/documentation/site/index.html"
SDK_REQUIREMENTS = {"msgspec", "websockets"}


def main(out: Path | None = None) -> int:
    """Build and check; the wheels are left in `out`, if it is given."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        wheels = {name: build(name, Path(temporary, name)) for name in DISTRIBUTIONS}
        for name, wheel in wheels.items():
            problems += compare(wheel, DISTRIBUTIONS[name][1]) + check_license(wheel)
        if SITE not in zipfile.ZipFile(wheels["kernelbroker_server"]).namelist():
            problems.append("the broker's wheel has no documentation: run `make docs`")
        if len({wheel.name.split("-")[1] for wheel in wheels.values()}) > 1:
            problems.append(f"the versions differ: {[wheel.name for wheel in wheels.values()]}")
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for wheel in wheels.values():
                shutil.copy(wheel, out)
        problems += try_sdk(wheels["kernelbroker"], Path(temporary, "env"))
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def build(name: str, out: Path) -> Path:
    """Build a wheel from a copy of the project, since builds leave files behind that later ones ship."""
    project, _ = DISTRIBUTIONS[name]
    source = shutil.copytree(project, out / "source", ignore=shutil.ignore_patterns(*NOT_COPIED))
    run(UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", out, source)
    (wheel,) = out.glob("*.whl")
    return wheel


def check_license(wheel: Path) -> list[str]:
    """The text of the licence must be in each wheel, and not the name of another file."""
    archive = zipfile.ZipFile(wheel)
    found = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
    if len(found) == 1 and archive.read(found[0]) == (ROOT / "LICENSE").read_bytes():
        return []
    return [f"{wheel.name} lacks the text of the licence"]


def compare(wheel: Path, package: Path) -> list[str]:
    """Return the files that are only in the wheel or only in the package's directory."""
    expected = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name for name in names if ".dist-info/" not in name}
    print(f"{wheel.name}: {len(shipped)} files")
    problems = [f"{wheel.name} lacks {name}" for name in sorted(expected - shipped)]
    problems += [f"{wheel.name} has {name}" for name in sorted(shipped - expected)]
    if not any(name.endswith("/LICENSE") for name in names):
        problems.append(f"{wheel.name} has no license")
    return problems


def try_sdk(wheel: Path, environment: Path) -> list[str]:
    """Install the SDK in an empty environment and check that it works with its two requirements."""
    run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, wheel)
    run(python, "-c", "import kernelbroker, kernelbroker.sync; kernelbroker.connect")
    run(environment / "bin" / "kernelbroker", "--version")
    frozen = run(UV, "pip", "freeze", "--quiet", "--python", python)
    extra = {line.split("==")[0].split(" @")[0] for line in frozen.splitlines()}
    extra -= {"kernelbroker"} | SDK_REQUIREMENTS
    return [f"the SDK brings {name}" for name in sorted(extra)]


def run(*command: str | Path) -> str:
    """Run a command away from this tree and from its caller's environment; returns its output."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    done = subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, env=environ, cwd="/"
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else None))
