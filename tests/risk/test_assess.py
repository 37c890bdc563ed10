"""The content of assessments, and their bounds: time, memory and size."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import kernelbroker
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernelbroker.risk import Assessment, Language, ParserMissing, assess, syntax_trees
from kernelbroker.risk.collector import MAX_FINDINGS

LANGUAGES: tuple[Language, ...] = ("python", "shell", "javascript")
MAX_CPU_S = 4.0
"""Far above what any code takes on an idle machine (1.1 s), and far below what is quadratic."""

LARGE: dict[str, tuple[Language, str]] = {
    "signs": ("python", "-" * 100_000),
    "a sum": ("python", "x = 1" + "+1" * 49_000),
    "attributes": ("python", "a" + ".b" * 49_000),
    "calls": ("python", "f" + "()" * 49_000),
    "forks": ("python", "def f():\n" + "  os.fork()\n" * 8_000),
    "commands": ("python", 'os.system("ls")\n' * 6_000),
    "evals": ("python", "eval('1')\n" * 9_000),
    "names in a ring": ("python", "a=b;b=c;c=a\n" * 8_000),
    "doubling text": ("python", "a='a'*2000\n" + "a=a+a\n" * 15_000),
    "blocks of another Python": ("python", "type X = int\n" * 7_000),
    "lists in lists": (
        "python",
        "a0=(1,)\n" + "".join(f"a{i + 1}=(a{i},a{i},a{i})\n" for i in range(4_000)),
    ),
    "lists that grow": ("python", "a=['ls']\n" + "a.append(x)\n" * 4_000 + "a=[*a,*a]\n" * 4_000),
    "numbers that grow": ("python", "a=2000\n" + "a=a*2000\n" * 8_000 + "exec(f'{a}')"),
    "a long list": ("python", "a=[" + "1," * 25_000 + "]\n" + "b=a+a\n" * 7_000),
    "text that grows": ("python", "a='ls'\n" + "a+='xyz'\n" * 10_000 + "os.system(a)"),
    "returns": ("python", "def f():\n" + " return 1\n" * 4_500 + "f()\n" * 10_000),
    "magics": ("python", "!ls -la\n" * 12_000),
    "substitutions": ("shell", "$(echo " * 7_000 + ")" * 7_000),
    "pipes": ("shell", "echo x" + "|cat" * 24_000),
    "growing variables": ("shell", 'X=$X$X$X; echo "$X"\n' * 5_000),
    "modes": ("shell", "chmod " + "u" * 99_000),
    "commas": ("shell", "echo {" + "," * 99_000),
    "loops": ("shell", "for a in 1 2 3 4 5 6 7 8; do " * 60 + "rm -rf $a" + "; done" * 60),
    "shells": ("shell", "sh -c 'ls'\n" * 9_000),
    "parentheses": ("javascript", "(" * 100_000),
    "members": ("javascript", "a" + ".a" * 49_000),
    "templates": ("javascript", "`${" * 33_000),
    "sums": ("javascript", "let a='x';" + "a+=a+a;" * 14_000 + "eval(a)"),
    "execs": ("javascript", "require('child_process').exec('ls');\n" * 2_600),
    "many statements of another Python": ("python", "x = 1\n" * 14_000 + "type X = int\n"),
    "a long line before a question mark": ("python", "a" * 90_000 + " !?"),
    "many magics among code": ("python", "x = 1\n" * 100 + "!ls\n" * 400),
    "star imports": ("python", "from os import *\n" * 6_000),
    "decorators": ("python", "@a\n" * 33_000 + "def f(): pass"),
    "unfinished pipes": ("shell", "a|" * 20_000),
    "many small unfinished pipes": ("python", "os.system('a|a|a|a|a|')\n" * 4_000),
    "command substitutions": ("shell", "echo " + "$(echo x)" * 10_000),
    "heredocs": ("shell", "cat <<E | sh\nls\nE\n" * 5_000),
    "unfinished pipes of two": ("shell", "\\a|%" * 12_500 + "=>"),
    "operators that do not parse": ("javascript", "|!" * 8_000),
    "joined strings": ("javascript", "f(" + "'a'+" * 24_000 + "b)"),
}


FRAGMENTS = st.sampled_from(
    [
        "a", "x=", "f(", ")", "[", "]", "{", "}", "'", '"', "`", "|", "||", "!", "?", "%", "%%", ";", "\n",
        " ", "$(", "${", "$x", "<<E", "<(", "import ", "from os import *\n", "lambda:", "+", "a.b", "/",
        "../", "*", "eval(", "require(", "\\", "&", "=>", "#", "\t", "@a\n", "rm -rf ", "a|", "if ", "do ",
    ]
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_code_takes_bounded_time(name: str) -> None:
    """An assessment of any code takes at most a few seconds of processor time."""
    language, code = LARGE[name]
    start = time.thread_time()
    assessment = assess(code[:100_000], language)
    assert time.thread_time() - start < MAX_CPU_S
    assert len(assessment.findings) <= MAX_FINDINGS


@pytest.mark.slow
@given(
    st.sampled_from(LANGUAGES),
    st.lists(FRAGMENTS, min_size=1, max_size=4).map("".join),
    st.lists(FRAGMENTS, max_size=3).map("".join),
    st.sampled_from([1, 100, 5_000, 50_000]),
)
@settings(max_examples=60, deadline=None)
def test_repeated_fragments_take_bounded_time(
    language: Language, repeated: str, last: str, count: int
) -> None:
    """No repeated fragment makes an assessment slow."""
    code = (repeated * count)[:50_000] + last
    start = time.thread_time()
    assessment = assess(code, language)
    assert time.thread_time() - start < MAX_CPU_S
    assert len(assessment.findings) <= MAX_FINDINGS


@given(st.sampled_from(LANGUAGES), st.text(max_size=300))
@settings(max_examples=80, deadline=None)
@example("python", "?\x1e")  # IPython warns about lines that end like this
def test_any_text_has_an_assessment(language: Language, code: str) -> None:
    """No text makes an assessment fail."""
    assert isinstance(assess(code, language), Assessment)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "a='x'*2000\n" + "a=a+a\n" * 6 + "".join(f"b{i}=f'{{a}}{i}'\n" for i in range(6_000))),
        ("shell", "a|" * 20_000),
        ("shell", 'X=$X$X$X; echo "$X"\n' * 5_000),
        ("javascript", "|!" * 8_000),
    ],
)  # fmt: skip
def test_an_assessment_takes_bounded_memory(language: str, code: str) -> None:
    """Code that grows or that does not parse does not fill the memory."""
    program = """
import sys
from kernelbroker.risk import assess
assess(sys.stdin.read(), sys.argv[1])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    command = [sys.executable, "-c", program, language]
    done = subprocess.run(command, input=code.encode(), capture_output=True, check=True)
    assert int(done.stdout) < 250 * 1024  # KiB; unbounded, these take gigabytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "-" * 100_000),
        ("python", "x = 1\n" * 50_000),
        ("python", "x = 1\n" * 100 + "!ls\n" * 1_000),
        ("shell", "a|" * 20_000),
        ("javascript", "|!" * 8_000),
    ],
)
def test_code_that_exceeds_the_limits_is_medium(language: Language, code: str) -> None:
    """Code that is too long or too complex has a finding that says so."""
    assessment = assess(code, language)
    assert assessment.level == "medium"
    assert "size" in {finding.rule for finding in assessment.findings}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "code", [";\t%%" * 9, "", "\0", "\ud800", "#", '"""', "!", "%", "%%", "%%bash", "%%!", "\\\n"]
)
def test_unparsable_text_is_at_most_medium(language: Language, code: str) -> None:
    """Text that no parser accepts is at most `medium`."""
    assert assess(code, language).level in ("safe", "low", "medium")


def test_a_finding_has_its_position_and_reason() -> None:
    """Line and column count from 1, and the reason has the full name."""
    assessment = kernelbroker.assess("import os as o\n\n  \nif 1:\n    x = o.fork()\n")
    [finding] = assessment.findings
    assert (assessment.language, assessment.level) == ("python", "medium")
    assert (finding.rule, finding.level) == ("process", "medium")
    assert (finding.line, finding.column) == (5, 9)
    assert finding.reason == "os.fork starts another process"


def test_findings_are_in_the_order_of_the_code() -> None:
    """Findings are in the order of the code; the level is that of the worst one."""
    assessment = assess("import os\nos.fork()\nos.execv(x, y)\nprint(os.environ)")
    assert [finding.line for finding in assessment.findings] == [2, 3, 4]
    assert assessment.level == "high"


def test_the_worst_of_many_findings_is_kept() -> None:
    """The worst finding is kept among a thousand harmless ones."""
    code = "import os\n" + "os._exit(0)\n" * 1_500 + "import shutil\nshutil.rmtree('/')\n"
    assessment = assess(code)
    assert assessment.level == "critical"
    assert assessment.findings[-1].line == 1_503
    assert len(assessment.findings) == MAX_FINDINGS


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("!rm -rf /", 1),
        ("x = 1\n\nif x:\n    !rm -rf /", 4),
        ("files = !rm -rf /", 1),
        ("\n%%bash\necho\nrm -rf /", 4),
        ("%%script bash\nrm -rf /", 2),
        ("%%time\n\n!rm -rf /", 3),
        ("x = '''\n!ls\n'''\n!rm \\\n  -rf /", 4),
        ("%rm -rf /", 1),
        ("rm -rf /", 1),
        ("%timeit -n 2 __import__('shutil').rmtree('/')", 1),
        (",os.system rm -rf /", None),
    ],
)
def test_commands_in_cells_have_their_line(cell: str, line: int | None) -> None:
    """IPython's syntax is assessed as the code that it runs, with the line of the cell."""
    assessment = assess(cell)
    lines = {f.line for f in assessment.findings if f.level == "critical"}
    assert lines == ({line} if line is not None else set())


@pytest.mark.parametrize(
    "code",
    [
        "import os as o; f = o.system; f('rm -rf ~')",
        "from subprocess import run as r; r(['rm', '-rf', '/'])",
        "__import__('o' + 's').system('rm -rf /')",
        "import importlib; importlib.import_module('sub' 'process').run('rm -rf /', shell=True)",
        "import os; getattr(os, 'sys' + 'tem')('rm -rf /')",
        "import sys; sys.modules['os'].system('rm -rf /')",
        "import shutil; shutil.os.system('rm -rf /')",
        "import posix; posix.system('rm -rf /')",
        "print.__self__.exec('import os; os.system(\"rm -rf /\")')",
        "__builtins__.__dict__['ex' + 'ec']('import os; os.system(\"rm -rf /\")')",
        "import base64; exec(base64.b64decode('aW1wb3J0IG9zOyBvcy5zeXN0ZW0oJ3JtIC1yZiAvJyk='))",
        "from pathlib import Path; open(Path('/var') / 'run' / 'docker.sock')",
        "import os\nos.system('sudo -u root sh -c \"rm -rf /\"')",
        "import os\nos.system('echo cm0gLXJmIC8= | base64 -d | sh')",
    ],
)
def test_aliases_and_constants_are_resolved(code: str) -> None:
    """Aliases and constant expressions are resolved."""
    assert assess(code).level == "critical"


@pytest.mark.parametrize(
    ("before", "level"),
    [
        ("cmd = 'ls'", "medium"),
        ("cmd = 'ls'; cmd = ask()", "high"),
        ("cmd = ''\nfor part in parts: cmd += part", "high"),
        ("cmd = f'ls {name}'", "high"),
        ("cmd, n = 'ls', ask()", "medium"),
        ("cmd, n = ask()", "high"),
        ("cmd = ['git', ask()]", "medium"),
        ("cmd = [ask(), 'x']", "high"),
        ("cmd = ['sh', '-c', ask()]", "high"),
        ("cmd = ['sudo', '-n', *ask()]", "high"),
    ],
)
def test_a_command_known_only_at_run_time_is_high(before: str, level: str) -> None:
    """A command that is known only at run time is `high`; of a list the program counts."""
    assert assess(f"{before}\nimport subprocess\nsubprocess.run(cmd)").level == level


def test_python_is_assessed_without_the_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tree-sitter a command in Python and a shell script say what to install."""
    for module in ("tree_sitter", "tree_sitter_bash", "tree_sitter_javascript"):
        monkeypatch.setitem(sys.modules, module, None)
    syntax_trees._grammar.cache_clear()
    try:
        assert assess("import os; os.execv(x, y)").level == "high"
        for code, language in (("ls", "shell"), ("1", "javascript")):
            with pytest.raises(ParserMissing, match=r"pip install 'kernelbroker\[risk\]'"):
                assess(code, language)  # type: ignore[arg-type]
        assessment = assess("import os; os.system('ls')")
        assert assessment.level == "high"
        assert "kernelbroker[risk]" in assessment.findings[0].reason
    finally:
        syntax_trees._grammar.cache_clear()


def test_magics_without_ipython_are_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without IPython a cell with magics says what to install."""
    monkeypatch.setitem(sys.modules, "IPython.core.inputtransformer2", None)
    assert assess("print(1)").level == "safe"
    assessment = assess("!ls")
    assert assessment.level == "high"
    assert any("kernelbroker[risk]" in finding.reason for finding in assessment.findings)


def test_the_extra_is_imported_only_when_it_is_needed() -> None:
    """Assessing plain Python imports neither tree-sitter nor IPython."""
    program = (
        "import sys, kernelbroker.risk as r; r.assess('import os; print(os.environ)');"
        "assert not {'tree_sitter', 'IPython', 'asyncio'} & set(sys.modules.keys() - BEFORE)"
    )
    program = "import sys, kernelbroker; BEFORE = set(sys.modules);" + program
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_code_in_an_unknown_language_is_high() -> None:
    """Nothing is known of a language that has no analyzer, so its code is high."""
    found = assess("1", "perl")
    assert found.level == "high"
    assert [finding.rule for finding in found.findings] == ["content_type"]


def test_threads_do_not_disturb_each_other() -> None:
    """Python assessed in several threads is assessed as in one."""
    code = "f(x)\n" * 3_000
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(assess, [code] * 8, ["python"] * 8))
    assert {each.level for each in found} == {"safe"}
