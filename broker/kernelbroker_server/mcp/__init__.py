"""The Model Context Protocol (MCP): tools for agents. Needs the extra `mcp`."""
