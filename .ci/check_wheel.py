"""Packaging: the wheel holds every package and every data file of the source tree, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("sdk/kernelbroker", "broker/kernelbroker_server", "kernel_image/kernelbroker_kernel")
NOT_SHIPPED = {"__pycache__"}


def main() -> int:
    expected = {
        str(path.relative_to((ROOT / source).parent))
        for source in SOURCES
        for path in (ROOT / source).rglob("*")
        if path.is_file() and not NOT_SHIPPED & set(path.parts)
    }
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # which keeps what is gone from the tree
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", directory, str(ROOT)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(directory).glob("*.whl")
        shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    for name in sorted(expected - shipped):
        print(f"not in the wheel: {name}", file=sys.stderr)
    for name in sorted(shipped - expected):
        print(f"in the wheel, but not in the tree: {name}", file=sys.stderr)
    print(f"{wheel.name}: {len(shipped)} files")
    return int(shipped != expected)


if __name__ == "__main__":
    sys.exit(main())
