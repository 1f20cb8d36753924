"""`htam`: the command line. Every module here is light to import; the work's packages are loaded by the command."""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; see app.main."""
    from htam_agent.cli.app import main as run

    run(arguments)
