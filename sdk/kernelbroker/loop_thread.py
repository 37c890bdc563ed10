"""An event loop in a separate thread, for callers that do not use asyncio or run another loop.

The calling thread waits on a queue, so that Ctrl-C reaches it. The work is then cancelled, and the wait
ends when the work has cleaned up. The work uses the same queue to run a callback in the calling thread.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

CLEANUP_TIMEOUT = 10.0

_Job: TypeAlias = Callable[[], None]
_jobs: ContextVar[SimpleQueue[_Job | None]] = ContextVar("_jobs")


class LoopThread:
    """Runs coroutines in the background thread; `close` ends it. Any thread may call."""

    def __init__(self) -> None:
        # Work that starts before `_is_closed` is set gets cancelled. The lock is an RLock because the
        # garbage collector may close a generator of `iterate` inside of another call.
        self._lock = threading.RLock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kernelbroker", daemon=True
        )
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result of `work`. KeyboardInterrupt, or an error of a callback, cancels it.

        Raises:
            RuntimeError: this is closed, or was closed during the call.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("an async callback would wait for itself: make it a plain function")
        with self._lock:
            if self._is_closed:
                work.close()
                raise RuntimeError("this client is closed: make a new one")
            running = _Work(self._loop, work)
        try:
            return self._wait(running)
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            raise RuntimeError("this client was closed while the call was under way") from None

    @staticmethod
    def _wait(running: _Work[T]) -> T:
        try:
            while (job := running.jobs.get()) is not None:
                job()
        except BaseException:
            running.cancel()
            raise
        return running.result()

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield the items of an async iterator. Closing this generator closes the iterator."""

        async def step() -> tuple[T, ...]:
            async for item in items:
                return (item,)
            return ()

        async def leave() -> None:
            await items.aclose()

        try:
            while item := self.call(step()):
                yield item[0]
        finally:
            if threading.current_thread() is self._thread:
                # The garbage collector got here, and must not wait for its own thread.
                asyncio.run_coroutine_threadsafe(leave(), self._loop)
            elif not self._is_closed:
                self.call(leave())

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run the `last` work, cancel the calls of other threads, and end the thread.

        Calling it again does nothing.
        """
        with self._lock:
            if self._is_closed:
                last.close()
                return
            self._is_closed = True
        try:
            self._wait(_Work(self._loop, last))
        finally:
            for rest in (
                _cancel_others,
                self._loop.shutdown_asyncgens,
                self._loop.shutdown_default_executor,
            ):
                self._wait(_Work(self._loop, rest()))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_others() -> None:
    """Cancel all other tasks, and wait until they have ended."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=CLEANUP_TIMEOUT)


class _Work(Generic[T]):
    """A task in the thread's loop, seen from the thread that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        _jobs.set(self.jobs)
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(lambda _: self.jobs.put(None))

    def result(self) -> T:
        assert self._task is not None
        return self._task.result()

    def cancel(self) -> None:
        """Cancel the task, and wait until it has ended."""
        with suppress(RuntimeError):  # The loop is closed, and the task has ended with it.
            self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
        try:
            while self.jobs.get(timeout=CLEANUP_TIMEOUT) is not None:
                pass
        except Empty:
            return
        assert self._task is not None
        if not self._task.cancelled():
            self._task.exception()  # Retrieved, since the caller gets the exception that interrupted.


def in_caller(callback: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The callback as a coroutine function that runs it in the thread which waits for the work.

    What an async callback returns is awaited in the loop's thread.
    """

    async def relay(*args: Any) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(set_it: Callable[[Any], None], value: object) -> None:
            def in_loop() -> None:
                if not answer.done():
                    set_it(value)

            with suppress(RuntimeError):  # The loop is closed: nothing waits for the answer.
                loop.call_soon_threadsafe(in_loop)

        def job() -> None:
            try:
                value = callback(*args)
            except StopIteration as exc:  # No future takes it; a coroutine may not raise it either.
                error = RuntimeError("the callback raised StopIteration")
                error.__cause__ = exc
                settle(answer.set_exception, error)
            except Exception as exc:
                settle(answer.set_exception, exc)
            else:
                settle(answer.set_result, value)

        _jobs.get().put(job)
        value = await answer
        return await value if inspect.isawaitable(value) else value

    return relay
