"""A CodeAgent of smolagents with a scripted model, whose cells run in a sandbox of E2B's."""

import json

from smolagents import ChatMessage, CodeAgent, MessageRole, Model

STEPS = ["x = 6 * 7\nprint('printed', x)\nx", "1 / 0", "final_answer({'x': x + 1})"]


class Scripted(Model):
    def __init__(self) -> None:
        super().__init__(model_id="scripted")
        self.steps = iter(STEPS)

    def generate(self, messages, **options):
        return ChatMessage(
            role=MessageRole.ASSISTANT, content=f"<code>\n{next(self.steps)}\n</code>"
        )


with CodeAgent(tools=[], model=Scripted(), executor_type="e2b", verbosity_level=0) as agent:
    answer = agent.run("What is it?")
    first, second = agent.memory.steps[1:3]
    print("#report " + json.dumps([answer, first.observations, str(second.error)]))
