"""Writes the code of the gRPC service from its `.proto`; with `--check`, only compares it.

make protos
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent / "sdk"
PROTO = "kernelbroker/grpc/sandbox_code.proto"


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        target = Path(name)
        outputs = [f"--{kind}={target}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SDK}", *outputs, PROTO]
        subprocess.run(command, check=True)
        made = {path.relative_to(target): path.read_text() for path in target.rglob("*.py*")}
    present = {path: (SDK / path).read_text() if (SDK / path).exists() else "" for path in made}
    if "--check" in sys.argv:
        stale = [str(path) for path in made if made[path] != present[path]]
        for path in stale:
            print(
                f"sdk/{path} is not what the .proto describes: run `make protos`", file=sys.stderr
            )
        return int(bool(stale))
    for path, text in made.items():
        (SDK / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
