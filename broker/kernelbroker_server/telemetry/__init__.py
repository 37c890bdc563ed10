"""What can be seen of the broker from outside: logs, metrics and traces; never code, output or secrets."""
