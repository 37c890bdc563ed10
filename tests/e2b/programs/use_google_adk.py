"""An agent of Google's ADK with a scripted model, whose environment is a sandbox of E2B's."""

import asyncio
import json

from google.adk.agents import LlmAgent
from google.adk.integrations.e2b import E2BEnvironment
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types


class Scripted(BaseLlm):
    steps: list

    async def generate_content_async(self, llm_request, stream=False):
        yield LlmResponse(content=types.Content(role="model", parts=[self.steps.pop(0)]))


def call(name, **args):
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


async def main():
    environment = E2BEnvironment(env_vars={"MINE": "yes"})
    steps = [
        call("WriteFile", path="cell.py", content="print(6 * 7)\n"),
        call("Execute", command="python3 cell.py; pwd; echo $MINE; exit 3"),
        call("EditFile", path="cell.py", old_string="6 * 7", new_string="6 * 8"),
        call("ReadFile", path="cell.py"),
        call("ReadFile", path="missing.py"),
        types.Part(text="done"),
    ]
    tools = [EnvironmentToolset(environment=environment)]
    agent = LlmAgent(name="agent", model=Scripted(model="scripted", steps=steps), tools=tools)
    runner = InMemoryRunner(agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="me")
    message = types.Content(role="user", parts=[types.Part(text="Go.")])
    answers, texts = [], []
    async for event in runner.run_async(user_id="me", session_id=session.id, new_message=message):
        for part in event.content.parts:
            if part.function_response:
                answers.append(part.function_response.response)
            if part.text:
                texts.append(part.text)
    await environment.close()
    print("#report " + json.dumps([texts, answers]))


asyncio.run(main())
