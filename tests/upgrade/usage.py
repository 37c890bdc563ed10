"""A program as users write it: it runs with the SDK of this release, and of the one before.

python usage.py URL TOKEN
"""

import asyncio
import contextlib
import sys

import kernelbroker


async def main(url: str, token: str) -> None:
    print(kernelbroker.__version__)
    async with kernelbroker.connect(url, token) as broker:
        assert (await broker.health())["status"] == "ok"
        async with broker.session(metadata={"made": "by usage.py"}) as session:
            result = await session.run("x = [1, 2]\nprint('hello')\nlen(x)", result_var="x")
            assert (result.success, result.stdout) == (True, "hello\n"), result
            assert "x" in [each.name for each in await session.variables()]
            failed = await session.run("1 / 0")
            assert failed.error == "ZeroDivisionError: division by zero", failed
            kinds = [type(each).__name__ async for each in session.stream("print(1)")]
            assert kinds == ["Started", "Stdout", "Result"], kinds
            await session.files.write("a.txt", "content")
            assert await session.files.read_text("a.txt") == "content"
            assert [each.path for each in await session.files.list()] == ["a.txt"]
            handle = await session.submit(
                "import time; print('begun', flush=True); time.sleep(600)"
            )
            async for event in handle.events():
                if isinstance(event, kernelbroker.events.Stdout):
                    await handle.interrupt()
            assert (await handle.result()).error_detail.cause == "interrupted"
            assert len(await session.executions()) == 4
            async with await session.context(language="bash") as shell:
                assert (await shell.run("cat a.txt")).stdout == "content"
            await session.checkpoint("usage")
            await broker.delete_checkpoint("usage")
            assert (await session.notebook())["cells"]
        assert (await broker.assess("import os")).level
        async with broker.session("attached", keep=True) as session:
            await session.run("x = 1")
        attached = await broker.attach("attached")
        assert (await attached.run("print(x)")).stdout == "1\n"
        await attached.close()
        with contextlib.suppress(kernelbroker.NotFound):
            await broker.attach("nobody")
    print("done")


asyncio.run(main(*sys.argv[1:]))
