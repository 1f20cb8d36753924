"""`htam mcp`: serve optimize, evaluate and profile to MCP clients."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def mcp_command(
    http: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve over HTTP (at /mcp) on this port instead of stdin and stdout."),
    ] = None,
    host: Annotated[str, typer.Option(help="With --http: the address to listen on.")] = "127.0.0.1",
) -> int:
    """Serve optimize, evaluate and profile to MCP clients, over stdin and stdout (for clients that start servers by
    command) or, with --http PORT, over HTTP."""
    from htam_agent.errors import SettingsError
    from htam_agent.logging import set_up_logging
    from htam_agent.settings import Settings

    if find_spec("mcp") is None:
        raise SettingsError(
            "`htam mcp` needs the package mcp, which is not installed.", "pip install 'htam_agent[mcp]'.", "mcp-missing"
        )
    settings = Settings.load()
    set_up_logging(settings.log_level, settings.log_format)
    from htam_agent.serving import make_server

    server = make_server()
    if http is None:
        # The SDK keeps the real standard output for itself: what else is printed goes to standard error.
        server.run("stdio")
        return 0
    if host not in LOOPBACK:
        typer.echo(
            f"warning: whoever reaches {host}:{http} can run files of this machine as tasks and kernels. There is no "
            "password; put a proxy with one in front.",
            err=True,
        )
    server.run("streamable-http", host=host, port=http)
    return 0
