"""The client without `await` is the asyncio client, in another thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading

import kernelbroker
import pytest
from kernelbroker import aio, events, sync
from kernelbroker.protocol.messages import Close, Execute, Interrupt, Open


def public(cls):
    names = {name for name in vars(cls) if not name.startswith("_")}
    return {name: inspect.getattr_static(cls, name) for name in names}


@pytest.mark.parametrize(
    ("sync_cls", "aio_cls"), [(sync.Broker, aio.Broker), (sync.Session, aio.Session)]
)
def test_both_clients_have_the_same_names_and_signatures(sync_cls, aio_cls):
    """What one client has the other has too, with the same parameters and defaults."""
    ours, theirs = public(sync_cls), public(aio_cls)
    assert set(ours) == set(theirs)
    for name, member in ours.items():
        if isinstance(member, property):
            assert isinstance(theirs[name], property)
        else:
            assert parameters(member) == parameters(theirs[name]), name
    assert parameters(sync.connect) == parameters(aio.connect)


def parameters(function):
    return list(inspect.signature(function).parameters.values())


async def in_thread(function):
    """Run blocking client code beside the broker's loop."""
    return await asyncio.to_thread(function)


async def test_run_and_stream_without_await(connected, scripts):
    """A session runs and streams, and closes at the end of `with`."""
    connected.cells["c"] = scripts.printing("a", "b")

    def work():
        with sync.connect() as broker, broker.session() as session:
            streamed = [type(event) for event in session.stream("c")]
            assert broker.health() == {"status": "ok"}
            session.interrupt()
            return streamed, session.run("c").stdout

    streamed, stdout = await in_thread(work)
    assert streamed == [events.Started, events.Stdout, events.Stdout, events.Result]
    assert stdout == "ab"
    assert not connected.sessions
    assert not [t for t in threading.enumerate() if t.name == "kernelbroker"]


async def test_it_works_where_a_loop_is_running(connected, scripts):
    """A thread whose own loop is running (a notebook's) may block on the client."""
    connected.cells["c"] = scripts.printing("a")

    async def notebook():
        with sync.connect() as broker:
            return broker.run("c").stdout

    assert await in_thread(lambda: asyncio.run(notebook())) == "a"


async def test_callbacks_run_in_the_calling_thread(connected, scripts):
    """A callback sees the caller's thread, and what it raises comes out of `run`."""
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
    """A `break` leaves the execution, and the session goes on."""
    connected.cells["c"] = scripts.forever

    def work():
        with sync.connect() as broker, broker.session() as session:
            for _ in session.stream("c", on_disconnect="interrupt"):
                break
            return session.run("d").success

    assert await in_thread(work)
    assert connected.ops(Interrupt)


async def test_errors_are_the_same(connected):
    """Exceptions of the asyncio client come out as they are; a closed client says so."""
    connected.gone["old"] = "closed"

    def work():
        with sync.connect() as broker, pytest.raises(kernelbroker.SessionGone):
            broker.session("old").open()
        with pytest.raises(RuntimeError, match="closed"):
            broker.health()

    await in_thread(work)


def test_keyboard_interrupt_cancels_the_work(broker_in_thread, scripts):
    """Ctrl-C in the main thread ends the wait, leaves the stream, and the session closes."""
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
    assert fake.ops(Interrupt)
    assert fake.ops(Close)


# Callbacks.


@pytest.mark.parametrize("name", ["on_stdout", "on_input"])
async def test_async_callbacks_are_awaited(connected, scripts, name):
    """A callback may be a coroutine function here too, and its answer is what it returns."""
    got = []

    async def ask(execution):
        await execution.emit(events.Input(prompt="name? "))
        await execution.emit(events.Stdout(content=await execution.answers.get()))
        await scripts.ok(execution)

    async def callback(text):
        await asyncio.sleep(0)
        got.append(text)
        return "Ada"

    connected.cells["c"] = ask if name == "on_input" else scripts.printing("name? ")

    def work():
        with sync.connect() as broker, broker.session() as session:
            return session.run("c", **{name: callback}).stdout

    assert await in_thread(work) == ("Ada" if name == "on_input" else "name? ")
    assert got == ["name? "]


async def test_an_async_callback_cannot_wait_for_its_own_client(connected, scripts):
    """What would wait for ever is an error that says what to do."""
    connected.cells["c"] = scripts.printing("a")

    def work():
        with sync.connect() as broker, broker.session() as session:

            async def callback(text):
                session.interrupt()

            with pytest.raises(RuntimeError, match="make it a plain function"):
                session.run("c", on_stdout=callback)

    await in_thread(work)


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
async def test_what_a_callback_raises_ends_the_wait(connected, scripts, error):
    """Answers that run out, `next(answers)`, are an error of the run and no hang."""
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


async def test_closing_ends_what_other_threads_wait_for(connected):
    """A thread whose session is being opened is told that the client was closed."""
    connected.silent_on.add(Open)
    broker = sync.connect()
    opening = asyncio.create_task(in_thread(broker.session().open))
    await connected.until(lambda: connected.ops(Open))
    await in_thread(broker.close)
    with pytest.raises(RuntimeError, match="closed while"):
        await asyncio.wait_for(opening, 20)
    await connected.until(lambda: not connected.connections)
    broker.close()  # twice is once
    with pytest.raises(RuntimeError, match="is closed"):
        broker.health()


async def test_closing_at_any_moment_leaves_no_thread_waiting(connected):
    """Calls that other threads make meanwhile all end."""

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
    """A callback that closes the client ends the run that it belongs to."""
    connected.cells["c"] = scripts.printing("a", "b")

    def work():
        broker = sync.connect()
        with pytest.raises(RuntimeError, match="closed while"):
            broker.run("c", on_stdout=lambda text: broker.close())

    await asyncio.wait_for(in_thread(work), 20)
    assert not [t for t in threading.enumerate() if t.name == "kernelbroker"]
