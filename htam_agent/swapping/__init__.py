"""Other implementations of a seam, chosen by settings: by name, import path, entry point or MCP server.

See docs/swapping.md.
"""
