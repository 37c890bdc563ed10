"""The command line on real kernels: its exit status, its files, and its sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.e2e.support import BrokerProcess, running_broker, whole_system
from tests.support.requires import requires

pytestmark = whole_system


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    templates = {"TEMPLATES__ASKS__POLICY": "confirm", "TEMPLATES__ASKS__POOL__MIN_SIZE": 0}
    with running_broker(POOL__MIN_SIZE=2, POOL__MAX_SIZE=8, **templates) as broker:
        yield broker


@pytest.fixture
def run(broker: BrokerProcess, tmp_path: Path):
    """Run `kernelbroker` in a directory of its own; returns its status, stdout and stderr."""

    def command(*arguments: str, stdin: str = "", **environ: str) -> tuple[int, str, str]:
        argv = [sys.executable, "-m", "kernelbroker.cli", *arguments]
        env = {**broker.client_environ, **environ}
        done = subprocess.run(
            argv, env=env, cwd=tmp_path, input=stdin, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    return command


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["pass"], 0),
        (["1 / 0"], 1),
        (["import sys; sys.exit(7)"], 7),
        (["import sys; sys.exit(0)"], 0),
        (["import sys; sys.exit('a message')"], 1),
        (["--language", "shell", "exit 5"], 5),
        (["--language", "shell", "exit 0"], 0),
        (["--timeout", "1", "import time; time.sleep(60)"], 124),
        (["--timeout", "1", "--language", "shell", "sleep 60"], 124),
        (["--result-var", "missing", "x = 1"], 1),
        (["--result-var", "x", "x = None"], 0),
        (["missing.py"], 2),
        (["--template", "missing", "1"], 2),
        (["--env", "NOT_SET_HERE", "1"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_exit_status(run, arguments: list[str], status: int) -> None:
    """The status is that of the code if it ended itself, and otherwise tells the kind of failure."""
    found, out, err = run("exec", *arguments)
    assert found == status, out + err
    assert (status == 2) == (err.startswith("kernelbroker: ") and err.count("\n") == 1)


def test_a_missing_variable_is_named(run) -> None:
    """`--result-var` with a name that does not exist is an error which names it."""
    assert run("exec", "--result-var", "missing", "x = 1")[2].splitlines()[-1] == (
        "kernelbroker: there is no variable missing"
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("script.py", "print(6 * 7)"),
        ("script.sh", "echo $((6 * 7))"),
        pytest.param("script.js", "console.log(6 * 7)", marks=requires("node")),
        ("sub/without_suffix", "print(6 * 7)"),
    ],
)
def test_a_file_is_run(run, tmp_path: Path, name: str, code: str) -> None:
    """An argument that names a file runs its content, in the language of its name."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    assert run("exec", name)[:2] == (0, "42\n")
    assert run("exec", "-f", name)[:2] == (0, "42\n")


def test_a_file_of_the_session_is_a_command(run) -> None:
    """In a given language, the name of a file that is not here is code."""
    wrote = run("exec", "--session", "built", "open('build.sh', 'w').write('echo built')")
    assert wrote[0] == 0
    shell = ["exec", "--session", "built", "--language", "shell"]
    assert run(*shell, "sh ./build.sh")[:2] == (0, "built\n")
    assert run(*shell, "./build.sh")[0] == 126  # it may not be executed
    assert run("sessions", "close", "built")[0] == 0


def test_variables_of_the_environment(run) -> None:
    """`--env NAME=VALUE` sets a variable, `--env NAME` passes the caller's on, in each language."""
    code = "import os; print(os.environ['A'], os.environ['B'])"
    options = ["--env", "A=1=2", "--env", "B"]
    assert run("exec", *options, code, B="from here")[:2] == (0, "1=2 from here\n")
    shell = ["--language", "shell", 'echo "$A $B"']
    assert run("exec", *options, *shell, B="from here")[:2] == (0, "1=2 from here\n")


def test_a_confirmation(run) -> None:
    """Without a terminal risky code is refused with what to do; `--confirm` runs it."""
    risky = ["exec", "--template", "asks", "import os\nprint(os.system(input.__name__ and 'true'))"]
    status, out, err = run(*risky)
    assert (status, out) == (2, "")
    assert "to run it anyway: --confirm" in err
    assert run(*risky, "--confirm")[:2] == (0, "0\n")


def test_sessions(run) -> None:
    """Sessions are listed, shown and closed; one that is not open is an error."""
    assert run("exec", "--session", "listed", "x = 1")[0] == 0
    status, out, _ = run("sessions", "list")
    header, *rows = out.splitlines()
    assert (status, header.split()[:2]) == (0, ["SESSION", "STATE"])
    assert "listed" in [row.split()[0] for row in rows]
    lines = map(json.loads, run("sessions", "list", "--json")[1].splitlines())
    assert "listed" in [line["session_id"] for line in lines]
    assert json.loads(run("sessions", "show", "--json", "listed")[1])["executions"] == 1
    shown = dict(line.split("  ", 1) for line in run("sessions", "show", "listed")[1].splitlines())
    assert (shown["session id"].strip(), shown["executions"].strip()) == ("listed", "1")
    assert run("sessions", "close", "listed") == (0, "", "")
    for action in ("show", "close", "attach"):
        status, out, err = run("sessions", action, "listed")
        assert (status, out, err.count("\n")) == (2, "", 1)


def test_files_are_copied(run, tmp_path: Path) -> None:
    """`cp` copies files and directories both ways; names are kept where the target is a directory."""
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "tree/below").mkdir(parents=True)
    (tmp_path / "tree/below/b.txt").write_text("b")
    for target in ("copies:/data/", "copies:", "copies:renamed.csv", "copies:/data/new/"):
        assert run("files", "cp", "a.csv", target) == (0, "", "")
    assert run("files", "cp", "tree", "copies:")[0] == 2
    assert run("files", "cp", "-r", "tree", "copies:") == (0, "", "")
    lines = map(json.loads, run("files", "ls", "-r", "--json", "copies")[1].splitlines())
    files = [line["path"] for line in lines if line["kind"] == "file"]
    assert files == ["a.csv", "new/a.csv", "renamed.csv", "tree/below/b.txt"]
    assert run("files", "cp", "copies:/data/renamed.csv", "out/b.csv") == (0, "", "")
    assert (tmp_path / "out/b.csv").read_text() == "a\n1\n"
    assert run("files", "cp", "copies:new/a.csv", "copies:renamed.csv", "out") == (0, "", "")
    assert run("files", "cp", "-r", "copies:tree", "out/") == (0, "", "")
    assert (tmp_path / "out/tree/below/b.txt").read_text() == "b"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("a.csv", "b.csv", "renamed.csv", "tree")
    ]
    assert run("files", "cp", "copies:./new//a.csv", "again.csv") == (0, "", "")
    assert (tmp_path / "again.csv").read_text() == "a\n1\n"
    assert run("files", "ls", "copies:new")[1].split()[-1] == "new/a.csv"
    assert run("sessions", "close", "copies")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cp", "a", "b"], "SESSION:PATH"),
        (["cp", "one:a", "two:b"], "SESSION:PATH"),
        (["ls"], "say which session"),
        (["ls", "nowhere"], "nowhere"),
        (["get", "a"], "say which session"),
        (["cp", "nowhere:a", "b"], "nowhere"),
        (["cp", "missing.txt", "made:"], "missing.txt"),
    ],
)
def test_wrong_arguments_of_files(run, arguments: list[str], says: str) -> None:
    """What cannot be copied is one line that tells what to do."""
    status, out, err = run("files", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert "made" not in run("sessions", "list")[1]  # what cannot be copied opens no session


def test_a_notebook_gets_variables_and_confirmations(run, tmp_path: Path) -> None:
    """`--env` and `--confirm` are for each cell of a notebook, also in a session that is open already."""
    cells = ["import os", "print(os.environ['A'], os.system(input.__name__ and 'true'))"]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    nbformat.write(notebook, tmp_path / "n.ipynb")
    asks = ["exec", "--session", "asked", "--template", "asks"]
    assert run(*asks, "x = 1")[0] == 0
    assert run(*asks, "--env", "A=here", "n.ipynb")[0] == 2
    assert run(*asks, "--env", "A=here", "--confirm", "n.ipynb")[0] == 0
    done = nbformat.read(tmp_path / "n.ipynb", as_version=4)
    assert done.cells[1].outputs[0].text == "here 0\n"
    assert run("sessions", "close", "asked")[0] == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(run, shell: str) -> None:
    """`completion` prints a script for each shell."""
    status, out, _ = run("completion", shell)
    assert status == 0
    assert "_ARGCOMPLETE" in out


def test_commands_are_completed(run, tmp_path: Path) -> None:
    """Commands, their actions and their options are completed."""
    asked = {
        "kernelbroker se": "sessions",
        "kernelbroker sessions cl": "close",
        "kernelbroker exec --te": "--template",
    }
    for line, completed in asked.items():
        found = tmp_path / "found"
        environ = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        run(**environ)
        assert found.read_text().strip().strip("\x0b").split("\x0b") == [completed]
