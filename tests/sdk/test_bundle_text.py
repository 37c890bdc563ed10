"""A MIME bundle as text."""

from __future__ import annotations

import time

import pytest
from kernelbroker.bundle_text import bundle_text, html_text
from kernelbroker.rich_outputs import Display

BUNDLES = {
    "Markdown": (
        {"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "# a"},
        "# a",
    ),
    "LaTeX": (
        {"text/plain": "<IPython.core.display.Latex object>", "text/latex": "$x^2$"},
        "$x^2$",
    ),
    "JSON": (
        {"text/plain": "<IPython.core.display.JSON object>", "application/json": {"a": "ü"}},
        '{\n  "a": "ü"\n}',
    ),
    "HTML": (
        {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>a</b> &lt; b"},
        "a < b",
    ),
    "a styled table": (
        {
            "text/plain": "<pandas.io.formats.style.Styler at 0x7f53fb44a3b0>",
            "text/html": "<style>#T_1 {color: red}</style>"
            "<table><thead><tr><th>&nbsp;</th><th>n</th></tr></thead>"
            "<tbody><tr><th>a</th><td>1</td></tr>\n<tr><th>b</th><td>2</td></tr></tbody></table>",
        },
        "| n\na | 1\nb | 2",
    ),
    "a frame": ({"text/plain": "   n\n0  1", "text/html": "<table></table>"}, "   n\n0  1"),
    "an object without a text": ({"text/plain": "<Foo at 0x12>"}, "<Foo at 0x12>"),
    "a text between brackets": ({"text/plain": "<a b>", "text/html": "c"}, "<a b>"),
    "nothing": ({}, ""),
    "no texts": ({"text/plain": 5, "text/html": None}, ""),
}


@pytest.mark.parametrize(("data", "text"), BUNDLES.values(), ids=BUNDLES)
def test_the_most_useful_form_is_shown(data: dict[str, object], text: str) -> None:
    """The form that says most is the text."""
    assert bundle_text(data) == text
    assert Display(data).text == text


HTML = {
    "<p>one</p><p>two</p>": "one\ntwo",
    "a<br>b<br/>c": "a\nb\nc",
    "<ul><li>x<li>y</ul>": "x\ny",
    "<script>let a = '<p>'</script>seen<SCRIPT>x</SCRIPT>": "seen",
    "<!-- <p>no --> yes": "yes",
    "1 < 2 and <b>3</b>": "1 < 2 and 3",
    "<td><p>a</p></td><td>b": "a | b",
    "&amp;lt; &#x41;": "&lt; A",
    "<title>no": "",
    "open <b": "open",
}


@pytest.mark.parametrize("source", HTML)
def test_text_of_html(source: str) -> None:
    """What a browser shows is there, and nothing else."""
    assert html_text(source) == HTML[source]


@pytest.mark.parametrize(
    "part", ["<a ", "<a/", "<!--", "<", "</", "<a b='", "<script>", "<td>", "&", "<!", "<style><"]
)
def test_hostile_html_takes_no_longer(part: str) -> None:
    """A source of 1 MB is read at once, whatever it is."""
    source = part * (1_000_000 // len(part))
    began = time.thread_time()
    html_text(source)
    assert time.thread_time() - began < 2
