"""Builds the documentation's site into the broker's package, from where the broker serves it at /docs.

    python docs/build_site.py             if a source has changed since
    python docs/build_site.py --strict    always; fails on broken links, and on pages that `nav` lacks

`make docs` and `make check` do the second; building the package or its image does the first. Where MkDocs
is not installed, it is installed into a temporary directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "broker" / "kernelbroker_server" / "documentation" / "site"
DIGEST = "SOURCES.sha256"
"""The file of the site that tells which sources it was made from."""
NOT_SHIPPED = ("*.map", "sitemap.xml*", "404.html", "objects.inv", "assets/images/favicon.png")
LANGUAGES = ("multi", "stemmer.support", "zh")
"""What the search needs besides English."""


ALL_WORDS = ROOT / "docs" / "search_all_words.js"
_HAN = re.compile(r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])")


def sources() -> list[Path]:
    """Return the files that the site is made from."""
    outside = ["mkdocs.yml", "CHANGELOG.md", "benchmarks/README.md"]
    inside = [path for path in (ROOT / "docs").rglob("*") if "__pycache__" not in path.parts]
    return sorted([ROOT / name for name in outside] + [path for path in inside if path.is_file()])


def digest() -> str:
    """Return what changes with each source."""
    whole = hashlib.sha256()
    for path in sources():
        whole.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


def separate_characters(index: Path) -> None:
    """Let the search find Chinese, which has no spaces: each character is a word of the index."""
    content = json.loads(index.read_text())
    for entry in content["docs"]:
        for key in ("title", "text"):
            entry[key] = _HAN.sub("\u200b", entry[key])
    index.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")))


def is_up_to_date() -> bool:
    found = SITE / DIGEST
    return found.exists() and found.read_text() == digest()


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """The environment variables of a process that can import MkDocs. Raises CalledProcessError."""
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    if find_spec("material") is not None:
        yield environ
        return
    project = tomllib.loads((ROOT / "broker" / "pyproject.toml").read_text())
    required = [each for each in project["build-system"]["requires"] if each.startswith("mkdocs")]
    with tempfile.TemporaryDirectory() as packages:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", packages, *required], check=True)
        yield environ | {"PYTHONPATH": packages}


def run_mkdocs(*options: str) -> None:
    """Run `mkdocs build`; show its warnings and errors. Raises CalledProcessError."""
    with environment() as environ:
        done = subprocess.run(
            # Not --quiet: with it, --strict misses the warnings.
            [sys.executable, "-m", "mkdocs", "build", *options],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    faults = [line for line in done.stdout.splitlines() if not line.startswith("INFO")]
    if faults:
        print("\n".join(faults), file=sys.stderr)
    done.check_returncode()


def build(strict: bool) -> None:
    """Build the site beside the present one, which it replaces at the end."""
    SITE.parent.mkdir(exist_ok=True)
    of_sources = digest()
    with tempfile.TemporaryDirectory(dir=SITE.parent.parent.parent, prefix=".site-") as temporary:
        made = Path(temporary, "site")
        run_mkdocs("--site-dir", str(made), *(["--strict"] if strict else []))
        for pattern in NOT_SHIPPED:
            for path in made.rglob(pattern):
                path.unlink()
        for path in (made / "assets" / "javascripts" / "lunr").rglob("*.js"):
            if path.name.removeprefix("lunr.").removesuffix(".min.js") not in LANGUAGES:
                path.unlink()
        separate_characters(made / "search" / "search_index.json")
        (worker,) = made.glob("assets/javascripts/workers/search.*.js")
        with worker.open("a") as script:
            script.write("\n" + ALL_WORDS.read_text())
        (made / DIGEST).write_text(of_sources)
        if SITE.exists():
            SITE.rename(Path(temporary, "old"))
        made.rename(SITE)


def main() -> int:
    with (ROOT / "mkdocs.yml").open() as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        return make(strict="--strict" in sys.argv[1:])


def make(strict: bool) -> int:
    """Build the site where that is needed, and tell about it. Returns the exit status."""
    if not strict and is_up_to_date():
        return 0
    try:
        build(strict)
    except subprocess.CalledProcessError:
        if strict or not SITE.exists():
            print("no site was made: see the faults above", file=sys.stderr)
            return 1
        print("the site is older than docs/: no newer one could be made", file=sys.stderr)
        return 0
    files = [path for path in SITE.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"made {SITE.relative_to(ROOT)}: {len(files)} files, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
