"""The synchronous client, which runs the asyncio client in another thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading

import kernelbroker
import pytest
from kernelbroker import client, events, sync
from kernelbroker.protocol.messages import Close, Execute, Interrupt, Open


def public(cls):
    names = {name for name in vars(cls) if not name.startswith("_")}
    return {name: inspect.getattr_static(cls, name) for name in names}


@pytest.mark.parametrize(
    ("sync_cls", "async_cls"),
    [
        (sync.Broker, kernelbroker.Broker),
        (sync.Session, kernelbroker.Session),
        (sync.ExecutionHandle, kernelbroker.ExecutionHandle),
        (sync.Files, kernelbroker.Files),
        (sync.SandboxClient, kernelbroker.SandboxClient),
    ],
)
def test_both_clients_have_the_same_names_and_signatures(sync_cls, async_cls):
    """Both clients have the same names, parameters and defaults."""
    ours, theirs = public(sync_cls), public(async_cls)
    assert set(ours) == set(theirs)
    for name, member in ours.items():
        if isinstance(member, property):
            assert isinstance(theirs[name], property)
        else:
            assert parameters(member) == parameters(theirs[name]), name
            assert not any(p.kind is p.VAR_KEYWORD for p in parameters(member)), name
    assert parameters(sync.connect) == parameters(client.connect)


@pytest.mark.parametrize("module", [kernelbroker, sync])
def test_url_token_and_timeout_come_in_one_order(module):
    """`connect` and `SandboxClient` take the same first arguments."""
    for function in (module.connect, module.SandboxClient):
        names = list(inspect.signature(function).parameters)
        assert names[:3] == ["url", "token", "timeout"]


def parameters(function):
    found = list(inspect.signature(function).parameters.values())
    # `sync` writes no async iterables.
    return [p.replace(annotation=None) if p.name == "data" else p for p in found]


async def in_thread(function):
    """Run blocking client code in a thread."""
    return await asyncio.to_thread(function)


def client_threads():
    """Threads of all clients. Other tests of this process may still have one."""
    return {thread for thread in threading.enumerate() if thread.name == "kernelbroker"}


async def test_run_and_stream_without_await(connected, scripts):
    """A session runs and streams, and closes at the end of `with`."""
    before = client_threads()
    connected.cells["c"] = scripts.printing("a", "b")

    def work():
        with sync.connect() as broker, broker.session() as session:
            streamed = [type(event) for event in session.stream("c")]
            assert broker.health()["status"] == "ok"
            session.interrupt()
            return streamed, session.run("c").stdout

    streamed, stdout = await in_thread(work)
    assert streamed == [events.Started, events.Stdout, events.Stdout, events.Result]
    assert stdout == "ab"
    assert await connected.no_sessions()
    assert client_threads() <= before


async def test_it_works_beside_a_running_loop(connected, scripts):
    """A thread with a running event loop, such as a notebook's, can call the client."""
    connected.cells["c"] = scripts.printing("a")

    async def notebook():
        with sync.connect() as broker:
            return broker.run("c").stdout

    assert await in_thread(lambda: asyncio.run(notebook())) == "a"


async def test_callbacks_run_in_the_calling_thread(connected, scripts):
    """Callbacks run in the caller's thread, and `run` raises their exceptions."""
    connected.cells["c"] = scripts.printing("a")

    def work():
        threads = []

        def fail(text):
            raise ZeroDivisionError

        with sync.connect() as broker, broker.session() as session:
            session.run("c", on_stdout=lambda text: threads.append(threading.current_thread()))
            with pytest.raises(ZeroDivisionError):
                session.run("c", on_stdout=fail)
        return threads == [threading.current_thread()]

    assert await in_thread(work)


async def test_leaving_a_stream_early_closes_it(connected, scripts):
    """A `break` ends the stream, and the session continues."""
    connected.cells["c"] = scripts.forever

    def work():
        with sync.connect() as broker, broker.session() as session:
            for _ in session.stream("c", on_disconnect="interrupt"):
                break
            return session.run("d").success

    assert await in_thread(work)
    assert connected.ops(Interrupt)


async def test_errors_are_the_same(connected):
    """Exceptions are those of the asyncio client; a closed client raises an error that says so."""

    def work():
        with sync.connect() as broker, pytest.raises(kernelbroker.BadRequest):
            broker.session("a", template="none").open()
        with pytest.raises(RuntimeError, match="closed"):
            broker.health()

    await in_thread(work)


def test_keyboard_interrupt_cancels_the_work(broker_in_thread, scripts):
    """Ctrl-C in the main thread ends the call and the stream, and the session closes."""
    fake, call = broker_in_thread
    fake.cells["c"] = scripts.forever

    def press():
        call(fake.until(lambda: fake.ops(Execute)))
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    with sync.connect(fake.url, scripts.token) as broker, broker.session() as session:
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            session.run("c", on_disconnect="interrupt")
        presser.join()
        assert session.run("d").success
        # By an operation, or by the broker where the cancelled one broke the connection.
        assert any(s.gateway.interrupts for s in fake.api.world.backend.live.values())
    assert fake.ops(Close)


# Callbacks.


@pytest.mark.parametrize("name", ["on_stdout", "on_input"])
async def test_async_callbacks_are_awaited(connected, scripts, name):
    """A callback may be a coroutine function, also as `on_input`."""
    got = []

    async def callback(text):
        await asyncio.sleep(0)
        got.append(text)
        return "Ada"

    connected.cells["c"] = scripts.asking if name == "on_input" else scripts.printing("name? ")

    def work():
        with sync.connect() as broker, broker.session() as session:
            return session.run("c", **{name: callback}).stdout

    assert await in_thread(work) == ("Ada" if name == "on_input" else "name? ")
    assert got == ["name? "]


async def test_a_callback_cannot_call_its_own_client(connected, scripts):
    """A call that could never end raises an error with advice."""
    connected.cells["c"] = scripts.printing("a")

    def work():
        with sync.connect() as broker, broker.session() as session:

            async def callback(text):
                session.interrupt()

            with pytest.raises(RuntimeError, match="make it a plain function"):
                session.run("c", on_stdout=callback)

    await in_thread(work)


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
async def test_stop_iteration_of_a_callback_is_an_error(connected, scripts, error):
    """StopIteration of `next(answers)` is an error of `run`, which does not hang."""
    connected.cells["c"] = scripts.printing("a")

    def fail(text):
        raise error

    def work():
        with sync.connect() as broker, broker.session() as session:
            with pytest.raises(Exception) as info:
                session.run("c", on_stdout=fail)
            assert error in (type(info.value), type(info.value.__cause__))
            return session.run("d").success

    assert await asyncio.wait_for(in_thread(work), 20)


# Closing.


async def test_closing_ends_the_calls_of_other_threads(connected):
    """A thread that is opening a session gets an error when the client is closed."""
    connected.silent_on.add(Open)
    broker = sync.connect()
    opening = asyncio.create_task(in_thread(broker.session().open))
    await connected.until(lambda: connected.ops(Open))
    await in_thread(broker.close)
    with pytest.raises(RuntimeError, match="closed while"):
        await asyncio.wait_for(opening, 20)
    await connected.until(lambda: not connected.links)
    broker.close()  # twice is once
    with pytest.raises(RuntimeError, match="is closed"):
        broker.health()


async def test_closing_at_any_moment_leaves_no_thread_waiting(connected):
    """All calls that other threads make during `close` end."""

    def call(broker):
        try:
            while True:
                broker.health()
        except RuntimeError as error:
            return str(error)

    for _ in range(10):
        broker = sync.connect()
        calls = [asyncio.create_task(in_thread(lambda b=broker: call(b))) for _ in range(3)]
        await in_thread(broker.close)
        done, waiting = await asyncio.wait(calls, timeout=20)
        assert not waiting
        assert all("closed" in task.result() for task in done)


async def test_closing_from_a_callback(connected, scripts):
    """A callback that closes the client ends its own `run`."""
    before = client_threads()
    connected.cells["c"] = scripts.printing("a", "b")

    def work():
        broker = sync.connect()
        with pytest.raises(RuntimeError, match="closed while"):
            broker.run("c", on_stdout=lambda text: broker.close())

    await asyncio.wait_for(in_thread(work), 20)
    assert client_threads() <= before
