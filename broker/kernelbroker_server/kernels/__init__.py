"""The channel to a kernel: the framing of messages, executions as state machines, and connections."""
