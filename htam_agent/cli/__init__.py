"""`htam`: the command line. Every module here is light to import; the work's packages are loaded by the command."""

from __future__ import annotations

from htam_agent.cli.app import main

__all__ = ["main"]
