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
