"""Cells of users with the value of `verdict` that each must give, for `test_fork_user_code.py`."""

from __future__ import annotations

from typing import Any

CELLS: dict[str, tuple[str, Any]] = {
    # Signals and threads
    "signals": (
        """
        import os, signal, threading
        seen = []
        former = [signal.signal(number, lambda number, _: seen.append(number)) for number in (10, 12)]
        os.kill(os.getpid(), 10); signal.raise_signal(12)
        signal.pthread_kill(threading.get_ident(), 10)
        for number, handler in zip((10, 12), former):
            signal.signal(number, handler)
        verdict = [seen, former == [signal.SIG_DFL] * 2]""",
        [[10, 12, 10], True],
    ),
    "alarm": (
        """
        import signal, time
        def ring(*_): raise TimeoutError("rang")
        former = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            time.sleep(60)
        except TimeoutError as error:
            verdict = str(error)
        signal.signal(signal.SIGALRM, former)""",
        "rang",
    ),
    "threads": (
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(4) as pool:
            verdict = [sum(pool.map(abs, range(100))), threading.current_thread().name]""",
        [4950, "MainThread"],
    ),
    "linear algebra": (
        """
        import numpy, threadpoolctl
        matrix = numpy.arange(400 * 400, dtype=float).reshape(400, 400) % 7
        one = matrix @ matrix
        with threadpoolctl.threadpool_limits(2):
            two = matrix @ matrix
            inverse = numpy.linalg.inv(matrix + 1000 * numpy.eye(400))
        verdict = [bool((one == two).all()),
                   bool(numpy.allclose(inverse @ (matrix + 1000 * numpy.eye(400)), numpy.eye(400))),
                   {entry["num_threads"] for entry in threadpoolctl.threadpool_info()} == {1}]""",
        [True, True, True],
    ),
    "linear algebra in threads and forks": (
        """
        import multiprocessing, numpy
        from concurrent.futures import ThreadPoolExecutor
        def total(number): return int((numpy.ones((200, 200)) @ numpy.ones((200, 200))).sum()) * number
        with ThreadPoolExecutor(4) as pool:
            verdict = [list(pool.map(total, range(4)))]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            verdict.append(pool.map(total, range(4)))""",
        [[0, 8_000_000, 16_000_000, 24_000_000]] * 2,
    ),
    "arrow": (
        """
        import pyarrow, pyarrow.compute, pyarrow.dataset
        pyarrow.set_cpu_count(4)
        table = pyarrow.table({"key": [n % 10 for n in range(100_000)], "value": range(100_000)})
        pyarrow.dataset.write_dataset(table, "/tmp/set", format="parquet", partitioning=["key"],
                                      existing_data_behavior="delete_matching")
        read = pyarrow.dataset.dataset("/tmp/set", partitioning=["key"]).to_table(use_threads=True)
        groups = read.group_by("key", use_threads=True).aggregate([("value", "sum")])
        pyarrow.set_cpu_count(1)
        verdict = [read.num_rows, pyarrow.compute.sum(groups["value_sum"]).as_py()]""",
        [100_000, 4_999_950_000],
    ),
    "parquet": (
        """
        import pandas
        frame = pandas.DataFrame({"a": range(1000), "b": [str(n) for n in range(1000)]})
        frame.to_parquet("/tmp/frame.parquet"); frame.to_csv("/tmp/frame.csv", index=False)
        verdict = [pandas.read_parquet("/tmp/frame.parquet").equals(frame),
                   int(pandas.read_csv("/tmp/frame.csv", engine="pyarrow").a.sum())]""",
        [True, 499_500],
    ),
    # Processes
    **{
        f"multiprocessing {method}": (
            f"""
            import math, multiprocessing
            context = multiprocessing.get_context("{method}")
            with context.Pool(2) as pool:
                verdict = [pool.map(math.factorial, [3, 4, 5])]
            queue = context.Queue()
            process = context.Process(target=queue.put, args=["hello"])
            process.start()
            verdict += [queue.get(timeout=60), process.join(), process.exitcode]
            manager = context.Manager()
            shared = manager.list([1, 2]); shared.append(3)
            verdict.append(list(shared)); manager.shutdown()""",
            [[6, 24, 120], "hello", None, 0, [1, 2, 3]],
        )
        for method in ("fork", "spawn", "forkserver")
    },
    "multiprocessing with a cell's function": (
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        def square(number): return number ** 2
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            verdict = list(pool.map(square, [2, 3]))""",
        [4, 9],
    ),
    "joblib": (
        """
        import joblib
        verdict = [
            joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(lambda n: n * 2)(n) for n in range(4))
            for backend in ("loky", "threading")]""",
        [[0, 2, 4, 6]] * 2,
    ),
    "scikit-learn": (
        """
        import numpy
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.model_selection import cross_val_score
        x = numpy.arange(200).reshape(100, 2); y = (x[:, 0] > 100).astype(int)
        model = RandomForestClassifier(10, n_jobs=2, random_state=0)
        scores = cross_val_score(model, x, y, cv=2, n_jobs=2)
        verdict = [len(scores), bool(model.fit(x, y).score(x, y) > 0.9)]""",
        [2, True],
    ),
    "fork": (
        """
        import os
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        verdict = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])""",
        7,
    ),
    "subprocess": (
        """
        import os, subprocess, sys
        def run(*line, **options):
            done = subprocess.run(line, capture_output=True, text=True, **options)
            return [done.returncode, done.stdout.strip(), done.stderr.strip()]
        os.environ["MINE"] = "seen"
        verdict = [run("sh", "-c", "echo $MINE; pwd"), run("cat", input="in"), run("sh", "-c", "exit 5"),
                   run(sys.executable, "-c", "import pandas, sys; print(sys.flags.safe_path, __name__)"),
                   run("sh", "-c", "kill -9 $$"), os.system("exit 3") >> 8,
                   get_ipython().getoutput("echo a")]
        del os.environ["MINE"]""",
        [
            *([0, "seen\n/data", ""], [0, "in", ""], [5, "", ""], [0, "False __main__", ""]),
            *([-9, "", ""], 3, ["a"]),
        ],
    ),
    "parent and relatives": (
        """
        import os, subprocess
        import psutil
        me, child = psutil.Process(), subprocess.Popen(["sleep", "60"])
        verdict = [me.ppid() == os.getppid(), os.getppid() in psutil.pids(), me.username(), me.status(),
                   child.pid in [each.pid for each in me.children()], me.memory_info().rss > 2**20,
                   me.cpu_times().user < 600, me.nice(), me.cwd(), me.num_threads() > 1]
        child.kill(); child.wait()""",
        [True, True, "sandbox", "running", True, True, True, 0, "/data", True],
    ),
    # The language and the shell
    "asyncio": (
        """
        import asyncio
        async def later(value):
            await asyncio.sleep(0.01)
            return value
        task = asyncio.create_task(later(1))
        done = await asyncio.gather(later(2), asyncio.to_thread(len, "abc"))
        program = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
        output, _ = await program.communicate()
        verdict = [done, await task, output.decode(), program.returncode]""",
        [[2, 3], 1, "hi\n", 0],
    ),
    "a server on the loopback": (
        """
        import asyncio
        async def answer(reader, writer):
            writer.write(await reader.readline()); writer.close()
        server = await asyncio.start_server(answer, "localhost", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"echo\\n")
        verdict = (await reader.read()).decode()
        writer.close(); server.close()""",
        "echo\n",
    ),
    "main": (
        """
        import inspect, pickle, sys, weakref
        class Mine:
            pass
        def mine(): return 1
        main = sys.modules["__main__"]
        verdict = [main.Mine is Mine, Mine.__module__, type(pickle.loads(pickle.dumps(Mine()))) is Mine,
                   inspect.getsource(mine).strip(), vars(main) is globals(), __name__]""",
        [True, "__main__", True, "def mine(): return 1", True, "__main__"],
    ),
    "garbage and weak references": (
        """
        import gc, weakref
        class Node: pass
        gone = []
        node = Node(); node.itself = node
        weakref.finalize(node, gone.append, 1); reference = weakref.ref(node)
        del node
        gc.collect()
        verdict = [gone, reference(), gc.isenabled(), gc.get_threshold()[0], gc.garbage]""",
        [[1], None, True, 700, []],
    ),
    "resource warnings": (
        """
        import gc, warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            open("/dev/null")
            gc.collect()
        verdict = [type(each.message).__name__ for each in caught]""",
        ["ResourceWarning"],
    ),
    "faulthandler": (
        """
        import faulthandler, tempfile
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.enable(file)
            faulthandler.dump_traceback(file)
            faulthandler.disable()
            file.seek(0); text = file.read()
        verdict = ["Current thread" in text, faulthandler.is_enabled()]""",
        [True, False],
    ),
    "a child that ends with a fault": (
        """
        import subprocess, sys
        code = "import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        verdict = [done.returncode, done.stderr.splitlines()[0]]""",
        [-11, "Fatal Python error: Segmentation fault"],
    ),
    "exit handlers of a child": (
        """
        import subprocess, sys
        code = "import atexit, sys; atexit.register(print, 'bye'); sys.exit(4)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        verdict = [done.returncode, done.stdout]""",
        [4, "bye\n"],
    ),
    "modules of the workspace": (
        """
        import importlib, os
        os.makedirs("/data/parts", exist_ok=True)
        open("/data/ours.py", "w").write("import parts.one\\nvalue = parts.one.value")
        open("/data/parts/one.py", "w").write("value = 1")
        open("/data/json.py", "w").write("1/0")
        importlib.invalidate_caches()
        import json, ours
        open("/data/ours.py", "w").write("value = 'changed'")
        verdict = [ours.value, importlib.reload(ours).value, json.loads("2")]
        os.remove("/data/json.py")""",
        [1, "changed", 2],
    ),
    "formats of text in JSON": (
        """
        import jsonschema
        check = jsonschema.FormatChecker().conforms
        verdict = [check("P1Y", "duration"), check("1 year", "duration"), check("no iri", "iri"),
                   check("2026-13-01T00:00:00Z", "date-time")]""",
        [True, False, False, False],
    ),
    "time zone and locale": (
        """
        import datetime, locale, os, time
        before = time.strftime("%z")
        os.environ["TZ"] = "Asia/Tokyo"; time.tzset()
        verdict = [before, time.strftime("%z"), time.tzname[0]]
        del os.environ["TZ"]; time.tzset()
        verdict += [time.strftime("%z"), locale.getpreferredencoding(), f"{1234.5:n}"]""",
        ["+0000", "+0900", "JST", "+0000", "UTF-8", "1234.5"],
    ),
    "logging": (
        """
        import io, logging
        stream = io.StringIO()
        logging.root.handlers.clear()  # another cell may have logged
        logging.basicConfig(stream=stream, level=logging.INFO, format="%(levelname)s %(message)s")
        logging.info("one"); logging.getLogger("mine").debug("two")
        verdict = stream.getvalue()
        logging.root.handlers.clear(); logging.root.setLevel(logging.WARNING)""",
        "INFO one\n",
    ),
    "shared memory": (
        """
        from multiprocessing import shared_memory
        block = shared_memory.SharedMemory(create=True, size=16)
        other = shared_memory.SharedMemory(block.name)
        block.buf[:2] = b"ab"
        verdict = bytes(other.buf[:2]).decode()
        other.close(); block.close(); block.unlink()""",
        "ab",
    ),
    "SQL and TLS": (
        """
        import sqlite3, ssl
        with sqlite3.connect(":memory:") as base:
            verdict = base.execute("select 1 + 1").fetchone()[0]
        verdict = [verdict, len(ssl.create_default_context().get_ca_certs()) > 0]""",
        [2, True],
    ),
    "magics": (
        """
        get_ipython().run_cell_magic("bash", "--out text", "echo $((1 + 2))")
        get_ipython().run_line_magic("cd", "-q /tmp")
        import os
        verdict = [text, os.getcwd()]
        get_ipython().run_line_magic("cd", "-q /data")""",
        ["3\n", "/tmp"],
    ),
    "fonts for all scripts": (
        """
        import warnings
        from matplotlib import font_manager, pyplot
        figure, axes = pyplot.subplots()
        axes.set_title("销售额 売上 매출 뷁 बिक्री")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            figure.canvas.draw()
        pyplot.close(figure)
        found = [
            font_manager.findfont(font_manager.FontProperties(family=name)).rpartition("/")[2]
            for name in ("SimHei", "Malgun Gothic", "Mangal")
        ]
        verdict = [[str(each.message) for each in caught], found]""",
        [[], ["DroidSansFallbackFull.ttf", "Hangul.ttf", "NotoSansDevanagari-Regular.ttf"]],
    ),
}
"""A cell by its name, and its value."""
