"""The strict rule set: lists of patterns, by language and level. They ignore case, and any match counts.

It has many false alarms: it does not know what code means. Operators choose it where every use of a
dangerous name must be seen. The patterns have bounded repetitions, so that the search takes linear time.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..protocol.findings import Finding, Level
from .collector import names

_MAX_FINDINGS_OF_PATTERN = 5


class Pattern(NamedTuple):
    """A pattern, its level, and what it is called in a finding."""

    level: Level
    name: str
    regex: re.Pattern[str]


def _pattern(level: Level, name: str, regex: str) -> Pattern:
    return Pattern(level, name, re.compile(regex, re.IGNORECASE | re.MULTILINE))


def _open_for(mode: str) -> str:
    return rf"\bopen\s{{0,9}}\([^\n]{{0,200}}?[,=(]\s{{0,9}}['\"]b?{mode}[bt+]{{0,2}}['\"]"


_OPEN_BY_DEFAULT = r"\bopen\s{0,9}\(\s{0,9}[^\s,()][^,()\n]{0,200}\)"
_FORK_BOMB = r"(\S{1,40})\s{0,9}\(\s{0,9}\)\s{0,9}\{\s{0,9}\1\s{0,9}\|\s{0,9}\1\s{0,9}&"
_PIPED_DOWNLOAD = r"\b(curl|wget)\b[^\n]{0,400}?\|\s{0,9}(sudo\s{1,9})?(\S{0,40}/)?(ba|da|z|k)?sh\b"

PATTERNS: Mapping[str, Sequence[Pattern]] = {
    "python": [
        _pattern("critical", "__import__(", r"__import__\s{0,9}\("),
        _pattern("critical", "eval(", r"eval\s{0,9}\("),
        _pattern("critical", "exec(", r"exec\s{0,9}\("),
        _pattern("critical", "compile(", r"compile\s{0,9}\("),
        _pattern("critical", "__builtins__", r"__builtins__"),
        _pattern("critical", "getattr with __", r"getattr\s{0,9}\([^\n]{0,200}?__"),
        _pattern("critical", "os.system(", r"os\s{0,9}\.\s{0,9}system\s{0,9}\("),
        _pattern("critical", "subprocess.", r"subprocess\s{0,9}\."),
        _pattern("critical", "popen(", r"popen\s{0,9}\("),
        _pattern("high", "open for writing", _open_for("w")),
        _pattern("high", ".write(", r"\.write\s{0,9}\("),
        _pattern("high", "shutil.", r"shutil\."),
        _pattern("high", "requests.", r"requests\."),
        _pattern("high", "urllib.", r"urllib\."),
        _pattern("high", "socket.", r"socket\."),
        _pattern("high", "import of os", r"\b(import|from)\s{1,9}os\b"),
        _pattern("high", "import of sys", r"\b(import|from)\s{1,9}sys\b"),
        _pattern("high", "import of pickle", r"\b(import|from)\s{1,9}pickle\b"),
        _pattern("medium", "open for reading", f"{_open_for('r')}|{_OPEN_BY_DEFAULT}"),
        _pattern("medium", ".read(", r"\.read\s{0,9}\("),
        _pattern("medium", "json.load", r"json\.load"),
        _pattern("medium", "os.environ", r"os\.environ"),
    ],
    "shell": [
        _pattern("critical", "rm -rf /", r"rm\s{1,9}-(rf|fr)\s{1,9}['\"]?/"),
        _pattern("critical", "rm -rf ~", r"rm\s{1,9}-(rf|fr)\s{1,9}['\"]?~"),
        _pattern("critical", "dd if=", r"dd\s{1,9}if="),
        _pattern("critical", "mkfs.", r"mkfs\."),
        _pattern("critical", "fork bomb", _FORK_BOMB),
        _pattern("critical", "> /dev/", r">\s{0,9}/dev/"),
        _pattern("critical", "download piped to a shell", _PIPED_DOWNLOAD),
        _pattern("high", "rm", r"\brm\b"),
        _pattern("high", "mv", r"\bmv\b"),
        _pattern("high", "> to a file", r">\s{0,9}[\w./~$'\"{-]"),
        _pattern("high", "git push", r"\bgit\b[^\n|;&]{0,200}?\bpush\b"),
        _pattern("high", "git --force", r"\bgit\b[^\n|;&]{0,200}?--force"),
        _pattern("high", "sudo", r"\bsudo\b"),
        _pattern("high", "chmod", r"\bchmod\b"),
    ],
    "javascript": [
        _pattern("critical", "eval(", r"eval\s{0,9}\("),
        _pattern("critical", "new Function", r"new\s{1,9}Function\b"),
        _pattern("critical", "child_process", r"child_process"),
        _pattern("high", "require of fs", r"require\s{0,9}\(\s{0,9}['\"`](node:)?fs(/\w{1,20})?['\"`]"),
        _pattern("high", "import of fs", r"\b(from|import)\s{0,9}\(?['\"`](node:)?fs(/\w{1,20})?['\"`]"),
        _pattern("high", "require of http", r"require\s{0,9}\(\s{0,9}['\"`](node:)?https?['\"`]"),
        _pattern("high", "import of http", r"\b(from|import)\s{0,9}\(?['\"`](node:)?https?['\"`]"),
        _pattern("high", "fetch(", r"fetch\s{0,9}\("),
    ],
}  # fmt: skip

_HIGH_IMPORTS = frozenset(["os", "sys", "subprocess", "ctypes"])
_SAFE_COMMANDS = names("""
    ls tree find pwd file stat cat head tail less more grep rg ag ack wc du echo which whereis""")
_QUOTED = re.compile(r"'[^']*'|\"[^\"$`]*\"")
_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_REDIRECTION = re.compile(r"[<>]&\d|&>")
_SEPARATORS = re.compile(r"[|;&\n(){}`]+")
_ASSIGNMENT = re.compile(r"\w+=")


def find(code: str, language: str) -> Iterator[Finding]:
    """Yield the findings of the strict rule set. Code in another language has none."""
    yield from matches(code, PATTERNS.get(language, ()))
    if language == "python":
        yield from _imports(code)
    if language == "shell":
        yield from _commands(code)


def matches(code: str, patterns: Sequence[Pattern], rule: str = "pattern") -> Iterator[Finding]:
    """Yield a finding for each of the first matches of each pattern."""
    for pattern in patterns:
        for number, match in enumerate(pattern.regex.finditer(code)):
            if number == _MAX_FINDINGS_OF_PATTERN:
                break
            yield _finding(code, match.start(), pattern.level, pattern.name, rule)


@lru_cache(maxsize=16)
def dangerous(regexes: tuple[str, ...]) -> Sequence[Pattern]:
    """Return patterns of an operator, which are critical. Raises ValueError for an invalid one."""
    found = []
    for regex in regexes:
        try:
            found.append(_pattern("critical", f"the pattern {regex}", regex))
        except re.error as exc:
            raise ValueError(f"{regex!r} is not a regular expression: {exc}") from exc
    return found


def _imports(code: str) -> Iterator[Finding]:
    """Yield the imports that the syntax tree shows, also where the patterns miss them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported = [node.module or ""]
        else:
            continue
        for name in imported:
            if (top := name.partition(".")[0]) in _HIGH_IMPORTS:
                yield Finding(
                    rule="import",
                    level="high",
                    line=node.lineno,
                    column=node.col_offset + 1,
                    reason=f"imports {top}",
                )


def _commands(code: str) -> Iterator[Finding]:
    """Yield a finding for the first command that is not on the list of safe ones."""
    plain = _REDIRECTION.sub(" ", _COMMENT.sub(r"\1", _QUOTED.sub("_", code)))
    for part in _SEPARATORS.split(plain):
        words = [word for word in part.split() if word != "$" and not _ASSIGNMENT.match(word)]
        if words and words[0].rpartition("/")[2].lower() not in _SAFE_COMMANDS:
            at = max(code.find(words[0]), 0)
            yield _finding(code, at, "medium", f"{words[0][:60]} is not on the list", "command")
            return


def _finding(code: str, at: int, level: Level, reason: str, rule: str) -> Finding:
    line = code.count("\n", 0, at) + 1
    column = at - (code.rfind("\n", 0, at) + 1) + 1
    return Finding(rule=rule, level=level, line=line, column=column, reason=reason)
