"""A checkpoint keeps what can be kept, value by value, and lists the rest by name and reason."""

from __future__ import annotations

import errno
import io
import os
import platform
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kernelbroker_kernel import environment
from kernelbroker_kernel.checkpoints import archive, loading, saving, values
from kernelbroker_kernel.errors import Refused

PATH = ".kernelbroker/saved"
ROOM = 1024**3


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environment, "WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only child processes of the test count: those of earlier tests may run beside it."""
    count = saving._children
    before = count()
    monkeypatch.setattr(saving, "_children", lambda: count() - before)


class Session:
    """A namespace in which cells run as in a kernel, where it is that of `__main__`."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.names: dict[str, Any] = self.module.__dict__
        self.hidden = dict(self.names)

    def run(self, code: str) -> None:
        main, sys.modules["__main__"] = sys.modules["__main__"], self.module
        try:
            exec(compile(code, "<cell>", "exec"), self.names)
        finally:
            sys.modules["__main__"] = main
        self.hidden["__builtins__"] = self.names["__builtins__"]

    def save(
        self,
        *,
        max_bytes: int = ROOM,
        configured: list[str] | None = None,
        files: bool = False,
    ) -> dict[str, Any]:
        path = Path(environment.WORKSPACE) / PATH
        asked = {"max_bytes": max_bytes, "configured": configured or [], "files": files}
        main, sys.modules["__main__"] = sys.modules["__main__"], self.module
        try:
            with saving.prepared(self.names, self.hidden, asked) as checkpoint:
                path.parent.mkdir(exist_ok=True)
                with path.open("wb") as file:
                    checkpoint.write(file)
        finally:
            sys.modules["__main__"] = main
        return checkpoint.report

    def load(self) -> dict[str, str]:
        """Load what was saved. Returns the reasons of the names that are missing."""
        main, sys.modules["__main__"] = sys.modules["__main__"], self.module
        try:
            missing = loading.load(self.names, {"path": PATH})["missing"]
        finally:
            sys.modules["__main__"] = main
        return {each["name"]: each["reason"] for each in missing}

    def again(self) -> Session:
        """Save everything, and load it in another session."""
        assert self.save()["missing"] == []
        other = Session()
        assert other.load() == {}
        return other


@pytest.fixture
def session(workspace: Path) -> Session:
    return Session()


def reasons(saved: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in saved["missing"]}


def forms(saved: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["form"] for each in saved["variables"]}


def test_functions_see_the_variables_of_their_new_session(session: Session) -> None:
    """A function reads and changes the variables of the session in which it was loaded."""
    session.run("total = 1\ndef add(n, times=2):\n    global total\n    total += n * times\n")
    session.run("twice = lambda n: n * 2\ndef fact(n): return 1 if n < 2 else n * fact(n - 1)")
    other = session.again()
    other.run("total = 100\nadd(5)\nassert total == 110\nassert twice(4) == 8 and fact(5) == 120")
    assert session.names["total"] == 1


def test_closures_share_what_they_shared(session: Session) -> None:
    """Two closures of one variable, in one container, still share it; one may refer to itself."""
    session.run(
        "def counter():\n"
        "    n = 0\n"
        "    def up():\n"
        "        nonlocal n\n"
        "        n += 1\n"
        "        return up\n"
        "    return up, lambda: n\n"
        "pair = counter()\npair[0]()\n"
    )
    other = session.again()
    other.run("assert pair[1]() == 1\npair[0]()()\nassert pair[1]() == 3")


def test_classes_and_their_instances_belong_together(session: Session) -> None:
    """An instance is one of the class that is loaded; properties, `super` and enums work."""
    session.run(
        "import enum, dataclasses\n"
        "class Base:\n    def hello(self): return 'base'\n"
        "class Child(Base):\n"
        "    def __init__(self, n): self.n = n\n"
        "    def hello(self): return super().hello() + str(self.n)\n"
        "    @property\n    def double(self): return self.n * 2\n"
        "    @classmethod\n    def make(cls): return cls(7)\n"
        "class Color(enum.Enum):\n    RED = 1\n"
        "@dataclasses.dataclass(frozen=True)\nclass Point:\n    x: int\n    y: int = 2\n"
        "child, others, red, point = Child(3), [Child(4)], Color.RED, Point(1)\n"
    )
    other = session.again()
    other.run(
        "assert isinstance(child, Child) and isinstance(others[0], Child)\n"
        "assert child.hello() == 'base3' and child.double == 6 and Child.make().n == 7\n"
        "assert red is Color.RED and point == Point(1, 2)\n"
    )


def test_values_that_share_an_object_still_do(session: Session) -> None:
    """Two names of one object, and a container of another variable's object, stay connected."""
    session.run(
        "import numpy as np\n"
        "a = [1]\nb = a\nholder = {'a': a}\n"
        "array = np.zeros(3)\narrays = [array]\n"
        "circle = []\ncircle.append(circle)\nleft, right = {}, {}\nleft['r'] = right\nright['l'] = left\n"
    )
    other = session.again()
    other.run(
        "a.append(2)\nassert b == [1, 2] and holder['a'] is a and b is a\n"
        "array[0] = 5\nassert arrays[0] is array\n"
        "assert circle[0] is circle and left['r'] is right and right['l'] is left\n"
    )


def test_frames_and_arrays_are_saved_in_plain_forms(session: Session) -> None:
    """Plain tables are Arrow and plain arrays npy; both come back equal, and can be changed."""
    session.run(
        "import numpy as np, pandas as pd\n"
        "plain = pd.DataFrame({'n': [1, 2], 'x': [.5, None], 's': ['a', None],\n"
        "    't': pd.to_datetime(['2026-01-01', None], utc=True)})\n"
        "single = pd.DataFrame({'n': np.arange(3)})\n"
        "fortran = np.asfortranarray(np.arange(6).reshape(2, 3))\n"
        "empty = np.empty((0, 3), 'f4')\nscalar = np.array(5)\nmatrix = np.arange(6.).reshape(2, 3)\n"
        "times = np.array(['2026-01-01'], 'M8[D]')\n"
        "views = matrix[:, ::2]\nrecords = np.array([(1, 2.)], [('a', 'i4'), ('b', 'f8')])\n"
        "objects = np.array([{1: 2}, None], object)\n"
    )
    before = dict(session.names)
    saved = session.save()
    kinds = forms(saved)
    assert saved["missing"] == []
    assert {name for name, form in kinds.items() if form == "arrow"} == {"plain", "single"}
    assert {name for name, form in kinds.items() if form == "npy"} == {
        *("fortran", "empty", "scalar", "matrix", "times")
    }
    other = Session()
    assert other.load() == {}
    for name in ("plain", "single"):
        pd.testing.assert_frame_equal(other.names[name], before[name])
        other.names[name].loc[0, "n"] = 9
        other.names[name].to_numpy(copy=True)[0] = 1
    for name in ("fortran", "empty", "scalar", "matrix", "times", "views", "records"):
        array = other.names[name]
        assert array.dtype == before[name].dtype and array.flags.writeable, name
        np.testing.assert_array_equal(array, before[name])
    assert other.names["fortran"].flags.f_contiguous
    assert other.names["objects"][0] == {1: 2}


FRAMES: dict[str, Any] = {
    "multi": lambda: pd.DataFrame(
        {("a", 1): [1, 2], ("b", 2): [3, 4]}, index=pd.MultiIndex.from_tuples([(1, "x"), (2, "y")])
    ),
    "doubled": lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]),
    "numbers": lambda: pd.DataFrame({0: [1], 1.5: ["x"]}),
    "categories": lambda: pd.DataFrame({"c": pd.Categorical(["b", "a"], ["b", "a"], ordered=True)}),
    "objects": lambda: pd.DataFrame({"o": [{"a": 1}, (2,)]}),
    "indexed": lambda: pd.DataFrame({"a": [1]}, index=pd.Index(["x"], name="key")),
    "nullable": lambda: pd.DataFrame({"i": pd.array([1, None], "Int64")}),
    "periods": lambda: pd.DataFrame({"p": pd.period_range("2026-01", periods=2, freq="M")}),
    "no_columns": lambda: pd.DataFrame(index=range(3)),
    "sliced": lambda: pd.DataFrame({"a": range(9)})[2:8:2],
    "integers_as_objects": lambda: pd.DataFrame({"o": pd.Series([1, 2], dtype=object)}),
    "named_columns": lambda: pd.DataFrame({"a": [1]}).rename_axis(columns="kind"),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_any_frame_comes_back_as_it_was(session: Session, kind: str) -> None:
    """Unusual labels, indexes, dtypes and attributes are kept."""
    frame = session.names["frame"] = FRAMES[kind]()
    frame.attrs["note"] = kind
    other = session.again()
    pd.testing.assert_frame_equal(other.names["frame"], frame)
    assert other.names["frame"].attrs == {"note": kind}
    del frame.attrs["note"]
    again = session.again().names["frame"]
    pd.testing.assert_frame_equal(again, frame)
    assert [type(x) for x in again.columns] == [type(x) for x in frame.columns]


def test_modules_are_saved_by_name(session: Session) -> None:
    """A module comes back under its alias, with the submodules that were loaded."""
    session.run(
        "import numpy as np, os.path, xml.etree.ElementTree\nfrom collections import abc as ABC"
    )
    other = session.again()
    other.run(
        "assert np.arange(2)[1] == 1 and xml.etree.ElementTree and ABC.Mapping and os.path.join"
    )
    assert other.names["np"] is np


def test_fitted_objects_and_partial_functions_are_kept(session: Session) -> None:
    """Objects of libraries with state, slots, `__reduce__` or `__getstate__` come back."""
    session.run(
        "import functools, collections, decimal, datetime, random, re\n"
        "class Model:\n"
        "    __slots__ = ('coef', '_cache')\n"
        "    def __init__(self): self.coef = [1.5]; self._cache = object()\n"
        "    def __getstate__(self): return {'coef': self.coef}\n"
        "    def __setstate__(self, s): self.coef = s['coef']; self._cache = None\n"
        "    def predict(self, x): return x * self.coef[0]\n"
        "model = Model()\nbound = model.predict\nhalf = functools.partial(pow, 2)\n"
        "counts = collections.Counter('aab')\nmoney = decimal.Decimal('1.10')\n"
        "day = datetime.date(2026, 11, 23)\ngenerator = random.Random(4)\npattern = re.compile('a+')\n"
        "error = ValueError('bad', 1)\n"
    )
    expected = random_of(session)
    other = session.again()
    other.run("assert bound.__self__ is model and model.predict(2) == 3 and half(3) == 8")
    other.run("assert counts['a'] == 2 and str(money) == '1.10' and day.day == 23")
    other.run("assert pattern.match('aa') and error.args == ('bad', 1)")
    assert random_of(other) == expected


BY_NAME = {
    "a cached function": (
        "@functools.lru_cache(maxsize=3, typed=True)\ndef x(n): return n if n < 2 else x(n - 1) + x(n - 2)",
        "(x(20), x.cache_parameters()) == (6765, {'maxsize': 3, 'typed': True})",
    ),
    "a part of a cached function": (
        "@functools.cache\ndef square(n): return n * n\nx = functools.partial(square, 4)",
        "x() == 16",
    ),
    "a cached method": (
        "class Box:\n    @functools.lru_cache\n    def one(self): return 1\nx = Box()",
        "x.one() == 1",
    ),
    "a cached property": (
        "class Box:\n    @functools.cached_property\n    def one(self): return 1\nx = Box()",
        "x.one == 1 and Box().one == 1",
    ),
    "a function by the type of its argument": (
        "@functools.singledispatch\ndef x(n): return 'any'\n@x.register\ndef _(n: int): return 'int'\nx(1)",
        "(x(5), x('a')) == ('int', 'any')",
    ),
    "a new type": ("import typing\nx = typing.NewType('x', int)", "x(5) == 5"),
    "a variable of types": ("import typing\nx = typing.TypeVar('x')", "x.__name__ == 'x'"),
    "an object that reduces itself to a name": (
        "class Sign:\n    def __reduce__(self): return 'x'\nx = Sign()",
        "isinstance(x, Sign)",
    ),
    "a ufunc": ("import numpy as np\nx = np.frompyfunc(abs, 1, 1)", "x(-1) == 1"),
}
"""What pickle saves by the name that it has in its session; the code of a cell, and what it is good for."""


@pytest.mark.parametrize("kind", BY_NAME)
def test_what_has_only_a_name_is_saved_or_missing(session: Session, kind: str) -> None:
    """A variable is there afterwards, or is among those that are missing: never neither."""
    code, check = BY_NAME[kind]
    session.run(f"import functools\n{code}")
    saved = session.save()
    again = Session()
    missing = again.load()
    assert ("x" in again.names) == ("x" not in {*reasons(saved), *missing})
    assert missing == reasons(saved), "it is known when it is saved"
    if "x" in again.names:
        again.run(f"assert {check}")


def random_of(session: Session) -> float:
    number: float = session.names["generator"].random()
    session.names["generator"].seed(4)
    return number


def test_what_cannot_be_saved_is_listed_with_its_reason(session: Session, workspace: Path) -> None:
    """Generators, files, locks, threads, processes, sockets and frames: by name; all others are saved."""
    (workspace / "notes").write_text("x")
    session.run(
        "import threading, socket, sys, subprocess\n"
        "kept = 1\ngen = (n for n in range(3))\nfile = open('notes')\nlock = threading.Lock()\n"
        "thread = threading.Thread(target=print)\nsock = socket.socket()\nnested = {'deep': [gen]}\n"
        "frame = sys._getframe()\nmodule = type(sys)('made_up')\n"
        "class Refuses:\n    def __reduce__(self): raise RuntimeError('no way')\n"
        "class Exits:\n    def __reduce__(self): raise SystemExit(3)\n"
        "refuses, exits = Refuses(), Exits()\n"
    )
    try:
        saved = session.save()
    finally:
        session.run("file.close(); sock.close()")
    why = reasons(saved)
    assert set(why) == {
        *("gen", "file", "lock", "thread", "sock", "nested", "frame", "module", "refuses", "exits")
    }
    assert "generator" in why["gen"] and "generator" in why["nested"]
    assert "open file" in why["file"]
    assert why["refuses"] == "no way"
    assert "module" in why["module"]
    other = Session()
    assert other.load() == why
    other.run("assert kept == 1 and Refuses and threading.Lock")
    assert not set(why) & set(other.names)


def test_values_that_take_too_long_are_missing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value whose pickling hangs is given up after a time, and does not lose the others."""
    monkeypatch.setattr(values, "VALUE_S", 0.2)
    session.run(
        "class Hangs:\n    def __reduce__(self):\n        while True: pass\n"
        "class Slow:\n    def __setstate__(self, s):\n        while True: pass\n"
        "before, hangs, slow, after = 1, Hangs(), Slow(), 2\nslow.x = 1\n"
    )
    saved = session.save()
    assert reasons(saved) == {"hangs": "it took longer than 0.2 s"}
    other = Session()
    late = "it took longer than 0.2 s"
    assert other.load() == {"slow": late, "hangs": late}
    assert (other.names["before"], other.names["after"]) == (1, 2)


def test_loading_lists_what_fails(session: Session) -> None:
    """A value that raises or exits when it is loaded is listed; the others are loaded."""
    session.run(
        "class Bad:\n    def __setstate__(self, s): raise KeyError('lost')\n"
        "class Quits:\n    def __setstate__(self, s): raise SystemExit\n"
        "bad, quits, good = Bad(), Quits(), 3\nbad.x = quits.x = 1\n"
    )
    assert session.save()["missing"] == []
    other = Session()
    assert set(other.load()) == {"bad", "quits"}
    assert other.names["good"] == 3


def test_a_function_that_cannot_be_pickled_is_saved_by_its_source(session: Session) -> None:
    """A function with a default that cannot be pickled is defined again from its source."""
    import linecache

    text = "import threading\ndef locked(n, lock=threading.Lock()):\n    with lock:\n        return n + 1\n"
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
    session.run(text)
    saved = session.save()
    assert forms(saved)["locked"] == "source"
    other = Session()
    assert other.load() == {}
    assert other.names["locked"](1) == 2


def test_another_version_of_python_loads_what_it_can(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of another Python is defined from its source, or listed with both versions; data is loaded."""
    import linecache

    text = "def plain(): return 4\nmade = lambda: 5\ndata = [1, 2]\n"
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
    session.run(text)
    with monkeypatch.context() as other_python:
        other_python.setattr(platform, "python_version", lambda: "3.99.1")
        session.save()
    other = Session()
    missing = other.load()
    assert set(missing) == {"made"}
    assert f"saved with Python 3.99.1 (here {platform.python_version()})" in missing["made"]
    assert other.names["plain"]() == 4 and other.names["data"] == [1, 2]


def _saved(session: Session, workspace: Path) -> bytes:
    session.run("first = 'a' * 100\nsecond = 'b' * 100\nthird = 'c' * 100")
    session.save()
    return (workspace / PATH).read_bytes()


def test_a_damaged_part_names_its_variable(session: Session, workspace: Path) -> None:
    """A changed byte loses the variable that it belongs to, and only that."""
    data = _saved(session, workspace)
    (workspace / PATH).write_bytes(data.replace(b"bbbb", b"bbxb", 1))
    other = Session()
    assert other.load() == {"second": "its data is damaged"}
    assert other.names["third"] == "c" * 100


def test_a_checkpoint_that_is_cut_off_names_what_is_missing(
    session: Session, workspace: Path
) -> None:
    """Everything before the cut is loaded."""
    data = _saved(session, workspace)
    (workspace / PATH).write_bytes(data[: data.index(b"cccc") + 5])
    other = Session()
    assert other.load() == {"third": "the checkpoint ends before its data"}
    assert other.names["second"] == "b" * 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "does not begin as one"),
        (lambda data: data[:40], "list of variables cannot be read"),
        (lambda data: data.replace(b"first", b"worst", 1), "list of variables cannot be read"),
        (lambda data: data.replace(b"checkpoint 1", b"checkpoint 2", 1), "newer version"),
    ],
)
def test_a_damaged_manifest_is_refused(
    session: Session, workspace: Path, change: Any, message: str
) -> None:
    """Without its manifest nothing of a checkpoint is loaded, and the refusal says why."""
    (workspace / PATH).write_bytes(change(_saved(session, workspace)))
    with pytest.raises(Refused, match=message):
        Session().load()
    assert not (workspace / PATH).exists()


def test_too_much_is_refused_with_the_largest_names(session: Session, workspace: Path) -> None:
    """A checkpoint beyond its bound is refused, and the largest variables are named."""
    session.run("import numpy as np\nsmall, large = 1, np.zeros(100_000)")
    with pytest.raises(Refused, match=r"large \(800,\d\d\d bytes\)") as caught:
        session.save(max_bytes=500_000)
    assert caught.value.code == "too_large"
    assert not list(workspace.iterdir())


def test_names_of_the_shell_are_not_saved(session: Session) -> None:
    """IPython's own names stay out; a user's underscored name, or a name that hides a builtin, is saved."""
    session.run("_private, list, In, _12, _i3 = 1, [2], ['x'], 4, 'i'")
    assert set(forms(session.save())) == {"_private", "list"}


def test_files_that_cannot_be_read_are_missing(
    session: Session, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreadable files and directories, and paths that are too long, are named."""
    for name in ("secret", "closed", "plain"):
        (workspace / name).mkdir()
        (workspace / name / "file").write_text(name)
    monkeypatch.setattr(os, "access", lambda path, _: not path.endswith("/secret/file"))
    scandir = os.scandir

    def closed(path: str) -> Any:
        if path.rstrip("/").endswith("/closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    monkeypatch.chdir(workspace / "plain")
    for _ in range(20):  # a path of some 5,000 bytes
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    found = reasons(session.save(files=True))
    assert found.pop("file secret/file") == "it cannot be read"
    assert found.pop("file closed") == "it cannot be read: Permission denied"
    (name,) = found
    assert name.startswith("file plain/ddd") and found[name].endswith("File name too long")


def test_files_come_back_as_they_were(session: Session, workspace: Path) -> None:
    """The tar has files, links, modes and times, but no pipes, no other mounts and nothing of ours."""
    (workspace / "sub" / "deep").mkdir(parents=True)
    (workspace / "sub" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (workspace / "sub" / "run.sh").chmod(0o755)
    os.utime(workspace / "sub" / "run.sh", (1_000_000_000, 1_000_000_000))
    (workspace / "sub" / "deep" / "data").write_bytes(os.urandom(300_000))
    (workspace / "sub" / "link").symlink_to("run.sh")
    (workspace / "sub" / "outside").symlink_to("/etc/hostname")
    (workspace / "empty").mkdir(mode=0o555)
    (workspace / ".kernelbroker").mkdir()
    (workspace / ".kernelbroker" / "other").write_text("not this")
    os.mkfifo(workspace / "pipe")
    expected = (workspace / "sub" / "deep" / "data").read_bytes()
    tar = io.BytesIO()
    archive._write_files(tar)
    tar.seek(0)
    other = workspace / "another"
    other.mkdir()
    environment.WORKSPACE = str(other)
    assert list(archive.extract(tar)) == []
    assert sorted(path.name for path in other.iterdir()) == ["empty", "sub"]
    assert (other / "sub" / "deep" / "data").read_bytes() == expected
    status = (other / "sub" / "run.sh").stat()
    assert (status.st_mode & 0o777, status.st_mtime) == (0o755, 1_000_000_000)
    assert (other / "sub" / "link").readlink() == Path("run.sh")
    assert (other / "sub" / "outside").readlink() == Path("/etc/hostname")
    assert (other / "empty").stat().st_mode & 0o777 == 0o555


def test_the_directory_and_the_names_of_the_environment_are_kept(
    session: Session, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on in its directory; of variables of the environment only the names are saved."""
    (workspace / "work").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, f"{workspace}/work"])
    monkeypatch.chdir(workspace / "work")
    monkeypatch.setenv("KB_TEST_KEY", "hidden-value")
    monkeypatch.setenv("KB_TEST_OWN", "by-the-cell")
    assert {"KB_TEST_KEY", "KB_TEST_OWN"} <= set(session.save(configured=["KB_TEST_KEY"])["env"])
    assert b"hidden-value" not in (workspace / PATH).read_bytes()
    os.chdir(workspace)
    sys.path.remove(f"{workspace}/work")
    monkeypatch.delenv("KB_TEST_KEY")
    monkeypatch.delenv("KB_TEST_OWN")
    loaded = loading.load(Session().names, {"path": PATH})
    assert Path.cwd() == workspace / "work"
    assert f"{workspace}/work" in sys.path
    assert loaded["env_missing"] == ["KB_TEST_KEY"]
    assert os.environ["KB_TEST_OWN"] == "by-the-cell"


@pytest.fixture
def running_thread() -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        stop.wait()

    work.__module__ = "__main__"
    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.usefixtures("running_thread")
def test_what_runs_beside_the_cells_is_listed(session: Session) -> None:
    """Threads and processes of the session, which no checkpoint can hold, are told."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert {"<thread>", "<process>"} <= set(reasons(session.save()))
    finally:
        process.kill()
        process.wait()
