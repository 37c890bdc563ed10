"""What a client holds: sessions, their executions in order, and each execution's journal."""
