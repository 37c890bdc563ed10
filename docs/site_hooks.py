"""What the documentation's site needs besides MkDocs: pages from other folders, and links that leave docs/.

The same Markdown files are read in the repository, where links to source files work. The site has no source
files: there such a link becomes its text.
"""

from __future__ import annotations

import importlib.metadata
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "benchmarks/README.md": "benchmarks.md"}
"""Files outside of docs/ that are pages of the site, with their names there."""
GENERATED = (
    "changelog.md",
    "cli.md",
    "configuration.md",
    "licenses.md",
    "rest.md",
    "sdk-modules.md",
    "sdk.md",
)
"""Pages that have every name: the search shows them behind those that explain."""
FIRST = ("faq.md", "start.md", "guides/")
ICON = "broker/kernelbroker_server/console/static/icon.svg"
# A link, not a picture; its text may hold code.
_LINK = re.compile(r"(?<!!)\[((?:`[^`]*`|[^\[\]`])*)\]\(([^)\s]+)\)")
_HAN = "\u4e00-\u9fff，。；：、（）"
_BROKEN_LINE = re.compile(f"(?<=[{_HAN}])\\n(?=[{_HAN}])")
_TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_SPAN = re.compile(r"`[^`]+`")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and the icon that lie outside of docs/."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "icon.svg", abs_src_path=str(ROOT / ICON)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to pages of the site, and join the lines of Chinese text, which has no spaces."""
    name = page.file.src_uri
    weight = 0.2 if name in GENERATED else 2 if name.startswith(FIRST) else 1
    page.meta["search"] = {"boost": weight}
    if name.startswith("zh/"):
        markdown = _BROKEN_LINE.sub("", markdown)
    of_repository = {ours: source for source, ours in PAGES.items()}
    source = of_repository.get(name, f"docs/{name}")
    pieces = _CODE.split(markdown)
    return "".join(
        piece if piece.startswith("```") else with_links_of_the_site(piece, source, name)
        for piece in pieces
    )


def with_links_of_the_site(text: str, source: str, name: str) -> str:
    """Return a page's text with other links.

    Args:
        source: the page's path in the repository.
        name: its path in the site.
    """

    def replace(link: re.Match[str]) -> str:
        shown, target = link.groups()
        if ":" in target or target.startswith("#"):
            return link[0]
        path, hash_sign, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if path in PAGES:
            path = PAGES[path]
        elif path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif (ROOT / path).exists():
            return shown
        else:
            return link[0]  # MkDocs reports it
        path = posixpath.relpath(path, posixpath.dirname(name) or ".")
        return f"[{shown}]({path}{hash_sign}{anchor})"

    # In code in a table GitHub needs a backslash before a bar, which Python-Markdown would show.
    text = _TABLE_ROW.sub(lambda row: _SPAN.sub(lambda s: s[0].replace("\\|", "|"), row[0]), text)
    return _LINK.sub(replace, text)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Tell browsers and screen readers the language of the Chinese pages."""
    if page.file.src_uri.startswith("zh/"):
        return output.replace('<html lang="en"', '<html lang="zh"', 1)
    return output


def on_post_build(config: Any, **_: Any) -> None:
    """Add the licences of the theme and its icons, whose scripts, styles and pictures are in the site."""
    used = (
        "licenses",
        "material",
    )  # the directories of the theme's own licence, and of that of its icons
    texts = [
        f"{file}\n\n{file.read_text()}"
        for file in importlib.metadata.files("mkdocs-material") or []
        if file.name == "LICENSE" and file.parent.name in used
    ]
    assert texts, "the theme has no licence"
    Path(config["site_dir"], "licenses.txt").write_text("\n\n".join(texts))
