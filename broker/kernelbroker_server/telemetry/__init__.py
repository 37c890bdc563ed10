"""Logs, metrics, traces and the events behind them. They never contain code, output or secrets."""
