"""One kernel: the framing of its messages, an execution as a state machine, and the way to reach it."""
