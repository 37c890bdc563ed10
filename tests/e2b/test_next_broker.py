"""Processes outlive a broker that is killed, and the next broker finds them."""

from __future__ import annotations

from tests.e2b.support import E2bClients
from tests.e2e.support import running_broker, whole_system

pytestmark = whole_system


def test_a_process_goes_on_with_the_next_broker(installed: None) -> None:
    """It is listed by the next broker, fed, and gives the output that nobody has watched."""
    with running_broker(POOL__MIN_SIZE=1, POOL__MAX_SIZE=2) as broker:
        clients = E2bClients(broker)
        sandbox_id, pid = clients.python("""
            from e2b_code_interpreter import Sandbox
            sandbox = Sandbox.create()
            process = sandbox.commands.run("while read line; do echo got $line; done",
                                           background=True, stdin=True, timeout=0)
            sandbox.commands.send_stdin(process.pid, "one\\n")
            for out, _, _ in process:
                assert out == "got one\\n"
                break
            report(sandbox.sandbox_id, process.pid)
        """)
        broker.kill()
        broker.start()
        listed, output = clients.python(f"""
            from e2b_code_interpreter import Sandbox
            sandbox = Sandbox.connect({sandbox_id!r})
            listed = [each.pid for each in sandbox.commands.list()]
            sandbox.commands.send_stdin({pid}, "two\\n")
            process = sandbox.commands.connect({pid})
            sandbox.commands.close_stdin({pid})
            report(listed, process.wait().stdout)
            sandbox.kill()
        """)
    assert (listed, output) == ([pid], "got two\n")


def test_timeouts_are_those_of_the_next_broker(installed: None) -> None:
    """What `set_timeout` and `connect` have set stays, and the time that a sandbox was paused counts in no
    broker."""
    end_of = """
        from datetime import datetime
        from e2b_code_interpreter import Sandbox
        def end_of(sandbox):
            return sandbox.get_info().end_at.timestamp()
    """
    with running_broker(POOL__MIN_SIZE=1, POOL__MAX_SIZE=3) as broker:
        clients = E2bClients(broker)
        running, end, paused, began = clients.python(f"""{end_of}
        running, paused = Sandbox.create(timeout=100), Sandbox.create(timeout=100)
        running.set_timeout(1000)
        paused.run_code("x = 42")
        paused.pause()
        report(running.sandbox_id, end_of(running), paused.sandbox_id, datetime.now().timestamp())
        """)
        broker.kill()
        broker.start()
        end_now, woken, text, ended = clients.python(f"""{end_of}
        paused = Sandbox.connect({paused!r}, timeout=1000)
        text = paused.run_code("x").text
        report(end_of(Sandbox.connect({running!r}, timeout=1)), end_of(paused), text,
               datetime.now().timestamp())
        """)
        assert abs(end_now - end) < 1 and text == "42"
        assert woken > ended + 900
        broker.kill()
        broker.start()
        woken_now, text = clients.python(f"""{end_of}
        paused = Sandbox.connect({paused!r}, timeout=1)
        report(end_of(paused), paused.run_code("x").text)
        paused.kill()
        Sandbox.kill({running!r})
        """)
    assert text == "42"
    assert abs(woken_now - woken) < (ended - began) / 4
