"""A SandboxAgent of OpenAI's Agents SDK with a scripted model; its sandbox is paused and resumed."""

import asyncio
import json
import uuid

from agents import ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.models.interface import Model
from agents.run_config import SandboxRunConfig
from agents.sandbox import SandboxAgent
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


class Scripted(Model):
    def __init__(self, *steps):
        self.steps = [*steps, said("done")]
        self.seen = []

    async def get_response(self, system_instructions, input, *args, **options):
        self.seen = input
        return ModelResponse(output=[self.steps.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *args, **options):
        raise NotImplementedError

    @property
    def answers(self):
        return [each["output"] for each in self.seen if each.get("type") == "function_call_output"]


def said(text):
    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(
        id="m", role="assistant", status="completed", type="message", content=content
    )


def run(command, **options):
    arguments = json.dumps({"cmd": command, **options})
    call_id = uuid.uuid4().hex
    return ResponseFunctionToolCall(
        name="exec_command", arguments=arguments, call_id=call_id, type="function_call"
    )


async def main():
    set_tracing_disabled(True)
    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(
        sandbox_type="e2b", template="base", timeout=600, envs={"MINE": "yes"}, pause_on_exit=True
    )

    async def go(session, *steps):
        model = Scripted(*steps)
        config = RunConfig(sandbox=SandboxRunConfig(session=session))
        agent = SandboxAgent(name="agent", model=model)
        result = await Runner.run(agent, "Go.", run_config=config)
        return [result.final_output, *model.answers]

    session = await client.create(options=options)
    async with session:
        first = await go(
            session,
            run("echo 'print(6 * 7)' > cell.py; python3 cell.py; echo $MINE"),
            run("exit 3"),
            run("test -t 0 && echo a terminal", tty=True, yield_time_ms=1000),
        )
        written = await session.read("cell.py")
    session = await client.resume(session.state)
    async with session:
        second = await go(session, run("python3 cell.py"))
        session.state.pause_on_exit = False
    print("#report " + json.dumps([first, written.read().decode(), second]))


asyncio.run(main())
