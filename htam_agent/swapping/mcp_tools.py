"""Tools of MCP servers behind the Protocols of the seams.

A tool gets of what is offered (the fields of the request, as JSON) what its input schema names, and must answer
structured content. Both schemas are looked at when the server starts, so that a tool that cannot fit is refused before
any work; an answer that does not fit after all is an InfrastructureError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from htam_agent.coding.base import Code
from htam_agent.errors import InfrastructureError, SettingsError
from htam_agent.plain_text import plain, plain_whole
from htam_agent.swapping.choices import MCP_PREFIX, McpServer, SeamName
from htam_agent.swapping.mcp_servers import Connection, connect
from htam_agent.swapping.protocols import BuildRequest, ProfileRequest, RunRequest
from htam_agent.verdict import CompileResult, ProfileResult, RunResult
from htam_agent.words import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from htam_agent.coding.base import CodeRequest, RepairRequest
    from htam_agent.coding.plan import Plan
    from htam_agent.operator import OperatorProfile
    from htam_agent.words import Backend

R = TypeVar("R", bound=BaseModel)
REMEDY = "Mend the server, then resume the run: earlier results are kept."


class Vectors(Record):
    """What a tool for embedding answers: one vector for each text, all of one length."""

    vectors: list[list[float]] = Field(min_length=1)


class McpTool(Generic[R]):
    """One tool of one server, checked against what it will be offered and must answer."""

    def __init__(self, connection: Connection, name: str, offered: frozenset[str], kind: type[R]) -> None:
        """Raises SettingsError when the server lacks the tool or its schemas do not fit."""
        self.connection, self.name, self.kind = connection, name, kind
        self.what = f"The tool {name!r} of the MCP server {connection.name!r}"
        if name not in connection.tools:
            raise SettingsError(
                f"The MCP server {connection.name!r} has no tool {name!r}.",
                f"Its tools are {', '.join(sorted(connection.tools)) or 'none'}.",
                "mcp-tool",
            )
        tool = connection.tools[name]
        self._named = offered.intersection(tool.input_schema.get("properties", {}))
        problems = [*_unknown_inputs(tool.input_schema, offered), *_missing_outputs(tool.output_schema, kind)]
        if problems:
            raise SettingsError(
                f"{self.what} does not fit: {'; '.join(problems)}.",
                f"It is offered {', '.join(sorted(offered))} and must answer a {kind.__name__} (docs/swapping.md).",
                "tool-misfit",
            )

    def __call__(self, offered: Mapping[str, object]) -> R:
        """The tool's answer to what it wants of `offered`. Raises InfrastructureError."""
        answer = self.connection.call(self.name, {name: offered[name] for name in self._named})
        if answer.is_error:
            text = " ".join(getattr(part, "text", "") for part in answer.content)
            shown = plain(self.connection.server.hide(plain_whole(text)), 1000).strip()
            raise InfrastructureError(f"{self.what} failed: {shown}", REMEDY, "tool-failed")
        found = answer.structured_content
        if not isinstance(found, dict):
            raise InfrastructureError(f"{self.what} answered without structured content.", REMEDY, "tool-answer")
        try:
            # A newer server may say more than is known here.
            return self.kind.model_validate({name: found[name] for name in self.kind.model_fields if name in found})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InfrastructureError(
                f"{self.what} answered no {self.kind.__name__}: {place}: {first['msg']}.", REMEDY, "tool-answer"
            ) from error


def _unknown_inputs(schema: Mapping[str, object], offered: frozenset[str]) -> list[str]:
    required = schema.get("required", [])
    wanted = [name for name in required if name not in offered] if isinstance(required, list) else []
    return [f"it requires {', '.join(map(repr, wanted))}, which it will not be given"] if wanted else []


def _missing_outputs(schema: Mapping[str, object] | None, kind: type[BaseModel]) -> list[str]:
    """What the declared answer lacks or types otherwise, at its first level."""
    if schema is None:
        return ["it declares no structured answer (an output schema)"]
    own = kind.model_json_schema(by_alias=False, mode="validation")
    declared = schema.get("properties", {})
    if not isinstance(declared, Mapping):
        return ["its output schema has no properties"]
    problems = [f"its answer has no {name!r}" for name in own.get("required", []) if name not in declared]
    for name, wanted in own["properties"].items():
        given = declared.get(name, {})
        left, right = _json_types(given), _json_types(wanted)
        if left and right and not left <= right | ({"integer"} if "number" in right else set()) | {"null"}:
            problems.append(
                f"its answer's {name!r} is {' or '.join(sorted(left))} and not {' or '.join(sorted(right))}"
            )
    return problems


def _json_types(schema: object) -> set[str]:
    """The JSON types that a property's schema names; empty where it refers elsewhere."""
    if not isinstance(schema, Mapping):
        return set()
    options = schema.get("anyOf")
    if isinstance(options, list):
        parts = [_json_types(option) for option in options]
        return set().union(*parts) if all(parts) else set()
    named = schema.get("type", [])
    return {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()


class McpCompiler:
    """Builds in the server's process, which must be able to write the folder that it is given."""

    version = ""
    """What the server compiles with is not known: its builds are not cached."""

    def __init__(self, connection: Connection, tool: str) -> None:
        self._tool = McpTool(connection, tool, frozenset(BuildRequest.model_fields), CompileResult)

    def build(self, request: BuildRequest) -> CompileResult:
        """See protocols.Compiler."""
        return self._tool(request.model_dump(mode="json"))


class McpRunner:
    """See protocols.Runner."""

    def __init__(self, connection: Connection, tool: str) -> None:
        self._tool = McpTool(connection, tool, frozenset(RunRequest.model_fields), RunResult)

    def run(self, request: RunRequest) -> RunResult:
        """See protocols.Runner."""
        return self._tool(request.model_dump(mode="json"))


class McpProfiler:
    """See protocols.Profiler."""

    def __init__(self, connection: Connection, tool: str) -> None:
        self._tool = McpTool(connection, tool, frozenset(ProfileRequest.model_fields), ProfileResult)

    def profile(self, request: ProfileRequest) -> ProfileResult:
        """See protocols.Profiler."""
        return self._tool(request.model_dump(mode="json"))


class McpCoder:
    """A coder without plans. The tool is offered `request` (a CodeRequest) and `repair` (a RepairRequest without its
    request, or null)."""

    def __init__(self, connection: Connection, tool: str) -> None:
        self.name = f"{MCP_PREFIX}{connection.name}/{tool}"
        self._tool = McpTool(connection, tool, frozenset({"request", "repair"}), Code)

    def initial_plan(self, operator: OperatorProfile, backend: Backend) -> Plan | None:
        """None: a server has no plans."""
        return None

    def generate(self, request: CodeRequest) -> Code:
        """See coding.base.Coder."""
        return self._tool({"request": request.model_dump(mode="json"), "repair": None})

    def repair(self, request: RepairRequest) -> Code:
        """See coding.base.Coder."""
        failed = request.model_dump(mode="json", exclude={"request"})
        return self._tool({"request": request.request.model_dump(mode="json"), "repair": failed})


class McpEmbedder:
    """Embeds by a server. Vectors are brought to unit length; `id` holds the server's and the tool's names."""

    def __init__(self, connection: Connection, tool: str) -> None:
        self.id = f"{MCP_PREFIX}{connection.name}/{tool}"
        self._tool = McpTool(connection, tool, frozenset({"texts"}), Vectors)
        self.dimension = len(self._tool({"texts": ["softmax"]}).vectors[0])

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """See memory.embed.Embedder. Raises InfrastructureError for another number or length of vectors."""
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        found = self._tool({"texts": texts}).vectors
        if [len(vector) for vector in found] != [self.dimension] * len(texts):
            raise InfrastructureError(
                f"{self._tool.what} answered no {len(texts)} vectors of {self.dimension} numbers.",
                REMEDY,
                "tool-answer",
            )
        vectors = np.asarray(found, dtype=np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: NDArray[np.float32] = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
        return unit


ADAPTERS: dict[SeamName, type[McpCompiler | McpRunner | McpProfiler | McpCoder | McpEmbedder]] = {
    "compile": McpCompiler,
    "run": McpRunner,
    "profile": McpProfiler,
    "coder": McpCoder,
    "embedder": McpEmbedder,
}


def mcp_implementation(seam: SeamName, choice: str, servers: Mapping[str, McpServer]) -> object:
    """The implementation that mcp:server/tool stands for; its server runs. Raises SettingsError."""
    name, _, tool = choice.removeprefix(MCP_PREFIX).partition("/")
    if not name or not tool:
        raise SettingsError(
            f"tools.{seam} = {choice!r} names no server and tool.", 'Write {mcp = "server/tool"}.', "tool-path"
        )
    if seam not in ADAPTERS:
        raise SettingsError(
            f"tools.{seam} = {choice!r}: a server cannot serve this seam, whose objects stay open over calls.",
            "Give an import path, or serve run, compile or profile by the server.",
            "mcp-seam",
        )
    return ADAPTERS[seam](connect(name, servers), tool)
