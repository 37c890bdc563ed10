#!/usr/bin/env python3
# ruff: noqa: PTH110, PTH123, T201
"""A coding agent for tests, with the options and events of `claude`. The task says how it behaves."""

import json
import os
import subprocess
import sys
import time

PROJECT = "/workspace/project"


def say(**event):
    print(json.dumps(event), flush=True)


def answer(text="hello"):
    content = [{"type": "text", "text": text}]
    say(type="assistant", message={"model": "fake", "content": content})


def done():
    usage = {"input_tokens": 3, "output_tokens": 4}
    ended = {"is_error": False, "num_turns": 1, "total_cost_usd": 0.5, "usage": usage}
    say(type="result", subtype="success", result="done", **ended)


def leave_processes():
    """A child, and a daemon in a session of its own; their pids are in the project."""
    daemon = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)"
    write = f"open({PROJECT!r} + '/daemon.pid', 'w').write(str(os.getpid()))"
    subprocess.run([sys.executable, "-c", f"{daemon}; {write}; time.sleep(600)"], check=True)
    child = subprocess.Popen(["sleep", "600"])
    with open(f"{PROJECT}/child.pid", "w") as file:
        file.write(str(child.pid))
    while not os.path.exists(f"{PROJECT}/daemon.pid"):
        time.sleep(0.01)


def garbage():
    print("no JSON at all")
    print('{"half": ')
    print("[" * 100_000)
    print('{"type": "assistant", "message": 5}')
    print('{"type": "assistant", "message": {"content": [{"type": "text", "text": "\\ud800"}]}}')
    print('{"type": "user", "message": {"content": [{"type": "tool_result"}]}}')
    print('{"type": "odd", "number": NaN, "large": 1e999, "int": ' + "9" * 4000 + "}")
    print('{"type": "result", "usage": [], "total_cost_usd": "free", "subtype": 5}')
    print('{"type": "odd", "text": "' + "x" * 2_000_000 + '"}')
    sys.stdout.buffer.write(b"\xff\xfe\n")
    answer()
    done()


def main(task):
    match task:
        case "edit":
            answer()
            with open(f"{PROJECT}/calc.py", "w") as file:
                file.write("def add(a, b):\n    return a + b\n")
            subprocess.run("git add -A && git commit -qm mended", shell=True, cwd=PROJECT)
            todos = [{"content": "mend", "status": "completed"}]
            call = {"type": "tool_use", "id": "t", "name": "TodoWrite", "input": {"todos": todos}}
            say(type="assistant", message={"model": "fake", "content": [call]})
            done()
        case "garbage":
            garbage()
        case "flood":
            for number in range(20_000):
                answer(str(number))
            done()
        case "gigabytes":
            answer()
            while True:
                os.write(1, b"x" * 2**20)
        case "leave":
            answer()
            leave_processes()
            done()
        case "stay":
            leave_processes()
            answer("ready")
            time.sleep(600)
        case "kill the parent":
            leave_processes()
            answer()
            os.kill(os.getppid(), 9)
            time.sleep(600)
        case "fail":
            sys.exit("cannot start")
        case "refused":
            text = [{"type": "text", "text": "Invalid API key"}]
            say(type="assistant", message={"model": "<synthetic>", "content": text})
            say(type="result", subtype="success", is_error=True, result="Invalid API key")
            sys.exit(1)


main(sys.argv[-1])
