"""One kernel: its messages' framing, an execution as a state machine, and the way to reach it."""
