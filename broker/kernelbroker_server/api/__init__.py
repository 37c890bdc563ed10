"""HTTP and WebSocket handlers: the only place that knows status codes."""
