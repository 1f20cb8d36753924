"""`htam graph`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from htam_agent.cli.options import JsonOption
from htam_agent.cli.output import print_json
from htam_agent.words import Record


class GraphObject(Record):
    """What `htam graph --json` prints."""

    schema_: Literal["htam.graph/1"] = Field("htam.graph/1", alias="schema", serialization_alias="schema")
    mermaid: str


def graph_command(as_json: JsonOption = False) -> int:
    """Draw the state machine as a Mermaid diagram, from the graph itself."""
    from htam_agent.graph.build import compiled

    mermaid = compiled().get_graph().draw_mermaid()
    print_json(
        GraphObject(schema_="htam.graph/1", mermaid=mermaid).model_dump_json(by_alias=True) if as_json else mermaid
    )
    return 0
