"""A deep agent with a scripted model, whose files and commands are those of a sandbox of E2B's."""

import json

import e2b
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_e2b import E2BSandbox

FILE = "/home/user/cell.py"


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


def call(name, **args):
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])


sandbox = e2b.Sandbox.create(timeout=300)
try:
    steps = [
        call("write_file", file_path=FILE, content="print(6 * 7)\n"),
        call("execute", command="python3 cell.py; pwd"),
        call("edit_file", file_path=FILE, old_string="6 * 7", new_string="6 * 8"),
        call("read_file", file_path=FILE),
        call("execute", command="python3 cell.py; exit 3"),
        call("ls", path="/home/user"),
        call("glob", pattern="**/*.py", path="/home/user"),
        call("grep", pattern="6", path="/home/user"),
        AIMessage("done"),
    ]
    model = Scripted(messages=iter(steps))
    agent = create_deep_agent(model=model, backend=E2BSandbox(sandbox=sandbox))
    answer = agent.invoke({"messages": [{"role": "user", "content": "Go."}]})
    answers = [each.content for each in answer["messages"] if each.type == "tool"]
    print("#report " + json.dumps([answer["messages"][-1].content, answers]))
finally:
    sandbox.kill()
