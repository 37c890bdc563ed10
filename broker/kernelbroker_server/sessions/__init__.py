"""Sessions, their ordered executions, and the event log of each execution."""
