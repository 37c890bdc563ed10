"""Sessions that sleep, with real sandboxes."""

from __future__ import annotations

from collections.abc import Iterator

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, running_broker, until, whole_system

pytestmark = whole_system


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One with a single sandbox, whose sessions fall asleep soon."""
    settings = {"SESSIONS__CHECKPOINT": "on_idle", "SESSIONS__SLEEP_AFTER": 0.3}
    with running_broker(POOL__MIN_SIZE=1, POOL__MAX_SIZE=1, **settings) as broker:
        yield broker


async def asleep(client: kernelbroker.Broker, count: int) -> None:
    async def enough() -> bool:
        return int((await client.health())["asleep"]) == count

    await until(enough)


async def test_sessions_take_turns_on_one_sandbox(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """Three sessions keep their variables, environment and files on one sandbox, also when the broker is
    killed while they sleep."""
    ids = ["one", "two", "three"]
    for name in ids:
        async with client.session(name, env={"WHO": name}, keep=True) as session:
            code = (
                "import os\nfrom collections import Counter\n"
                f"os.environ['OWN'] = 'own-{name}'\nopen('f', 'w').write('{name}')\n"
                "class Box:\n    def __init__(self, n): self.n = n\n"
                f"box = Box({name!r}); counts = Counter('aab')"
            )
            assert (await session.run(code)).success
            await asleep(client, ids.index(name) + 1)
    states = {each.session_id: each.state for each in await client.sessions()}
    assert states == dict.fromkeys(ids, "asleep")
    broker.kill()
    broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as again:
        assert (await again.health())["asleep"] == 3
        for name in ids:
            async with await again.attach(name) as session:
                code = "print(box.n, isinstance(box, Box), counts['a'], open('f').read())\n"
                code += "print(os.environ['WHO'], os.environ['OWN'])"
                result = await session.run(code)
                assert result.stdout == f"{name} True 2 {name}\n{name} own-{name}\n", result.error
                assert not result.kernel_restarted
            await asleep(again, 3)
        async with await again.attach("two") as session:
            assert await session.files.read("f") == b"two"  # wakes it as well
            assert (await session.run("gen = (n for n in 'ab')")).success

            async def told() -> bool:
                infos = {each.session_id: each for each in await again.sessions()}
                return [each.name for each in infos["two"].kept_awake_by] == ["gen"]

            await until(told)
            assert (await session.run("next(gen)")).text == "'a'"
        for name in ids[1:]:
            session = await again.attach(name, keep=False)
            await session.close()


async def test_sigterm_leaves_sleeping_sessions(broker: BrokerProcess) -> None:
    """A broker that is stopped for a restart leaves them to the next one."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        await asleep(client, 1)
        broker.stop()
        broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as client:
        await asleep(client, 1)
        session = await client.attach("one", keep=False)
        assert (await session.run("print(box.n)")).stdout == "one\n"
        await session.close()


async def test_a_shutdown_puts_sessions_to_sleep() -> None:
    """With shutdown = "sleep", sessions go on with what could be saved of them, also without a grace."""
    settings = {"SHUTDOWN": "sleep", "SANDBOX__ORPHAN_GRACE": 0, "POOL__MIN_SIZE": 1}
    with running_broker(**settings) as broker:
        async with kernelbroker.connect(broker.url, broker.token) as client:
            idle, busy = client.session("idle", keep=True), client.session("busy", keep=True)
            assert (await idle.run("x = 42; gen = (n for n in 'ab')")).success
            assert (await busy.run("print('began')")).success
            last = await busy.submit("import time; time.sleep(1); y = 43")
            broker.stop()
            broker.start()
        async with kernelbroker.connect(broker.url, broker.token) as client:
            assert (await client.health())["asleep"] == 2
            assert (await client.result("busy", last.execution_id)).success
            idle, busy = [await client.attach(name, keep=False) for name in ("idle", "busy")]
            assert (await busy.run("print(y)")).stdout == "43\n"
            result = await idle.run("print(x, 'gen' in dir())")
            assert result.stdout == "42 False\n"
            assert result.kernel_restarted  # something is missing
            await idle.close()
            await busy.close()
