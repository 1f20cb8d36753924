"""Settings in five layers, weakest first: defaults < htam.toml < .env < environment (HTAM_*) < command line.

`htam.toml` and `.env` are read from the current folder. `Settings.load` is the way in: it turns every way to be wrong
into a SettingsError that names the key, the layer and the remedy. `explain` says where each value came from.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PrivateAttr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as SourceError

from htam_agent.errors import SettingsError
from htam_agent.memory.modes import MemoryMode
from htam_agent.model_settings import ModelFields
from htam_agent.swapping.choices import McpChoices, ToolChoices, from_text
from htam_agent.words import Director, Judge, Pause, Policy, Precision, Protocol

PREFIX = "HTAM_"
TOML_FILE = "htam.toml"
ENV_FILE = ".env"

Origin = Literal["default", "htam.toml", ".env", "environment", "command line", "call"]
"""`call`: an argument of a library function."""

NOT_SETTINGS = frozenset({"HTAM_CUDA_ARCH", "HTAM_KERNEL_DIR", "HTAM_CONFINEMENT_OFF"})
"""Variables of the environment that other parts read: the target of CUDA builds, where a kernel's launcher finds its
prebuilt binary, and the layers of confinement that are turned off."""


class Explained(NamedTuple):
    """One setting as a user sees it: `value` as text, secrets masked, null for unset."""

    name: str
    value: str | None
    origin: Origin


class Settings(ModelFields):
    """Everything that a user can choose. Times are in seconds, sizes in bytes, folders relative to the current one."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",  # unknown keys are found, and named, by `load`
        frozen=True,
        validate_default=False,
    )

    backend: Literal["auto", "cuda", "cpp"] = Field(
        "auto", description="Where kernels run: cuda, cpp, or auto (cuda first)."
    )
    coder: Literal["template", "model"] = Field(
        "template", description="Who writes kernels: template (no model needed) or model (a chat model)."
    )
    steps: int = Field(6, ge=1, le=1000, description="Evolution steps at most.")
    precision: Precision = Field("tf32", description="ieee, tf32, fp16 or bf16, for every baseline and the candidate.")
    protocol: Protocol = Field(
        "strict", description="Which verdict decides: kernelbench, verified, verified-fair or strict."
    )
    policy: Policy | None = Field(
        None, description="own-kernels-only or library-allowed; unset: by the operators of the task."
    )
    memory_mode: MemoryMode = Field(
        "full",
        description="What of the memory is used: full, or an ablation (no-hierarchy, no-local, random, no-prefix, "
        "no-position, no-update, none).",
    )
    candidates: int = Field(1, ge=1, le=16, description="Candidates written in each step.")
    repairs: int = Field(2, ge=0, le=16, description="Repairs of one failed candidate in one step.")
    director: Director = Field(
        "score", description="Who chooses a step's direction: the score alone, or a chat model among the best scored."
    )
    evaluator: Judge = Field(
        "local",
        description="Who judges: this machine, or (external) another one, while the run waits for its verdicts.",
    )
    approve: Annotated[tuple[Pause, ...], NoDecode] = Field(
        (), description="Pauses for your yes: before a direction, before code is built and run (direction,code)."
    )
    seed: int | None = Field(None, ge=0, description="Seed of selection; unset: a fresh one, recorded in the run.")
    runs: Path = Field(Path("htam-runs"), description="Folder of the runs.")
    runs_cap_bytes: int = Field(
        5 * 2**30,
        ge=0,
        description="Cap on the runs folder's size: beyond it the oldest finished runs lose attempts and checkpoints.",
    )
    memory: Path = Field(
        default_factory=lambda data: data["runs"] / "memory",
        description="Folder of the memory store; default: `memory` in the runs folder.",
    )
    out: Path | None = Field(None, description="Folder of this run; unset: a new one in the runs folder.")
    chroma_url: str | None = Field(
        None, description="A Chroma server (http://host:port) instead of the folder: for several processes at once."
    )
    strategies: Annotated[tuple[Path, ...], NoDecode] = Field(
        (), description="Your own strategies: YAML files or folders, separated by colons (a list in htam.toml)."
    )
    prompts: Path | None = Field(None, description="Folder whose prompt files win over the shipped ones, file by file.")
    max_seconds: float | None = Field(
        None, gt=0, description="Time after which no new step begins and no answer is waited for."
    )
    no_progress_steps: int = Field(
        4, ge=1, description="Stop after so many steps in a row that did not improve the best kernel."
    )
    build_seconds: float = Field(60.0, gt=0, description="Time limit of one build.")
    run_seconds: float = Field(60.0, gt=0, description="Time limit of each step of judging one candidate.")
    total_seconds: float = Field(300.0, gt=0, description="Time limit of judging one candidate in all.")
    hang_memory: bool = Field(
        True, description="Refuse at once what hung before under the same limits; false: try it again."
    )
    compile_baseline: bool | None = Field(
        None, description="Measure torch.compile as a baseline; unset: on cuda only (it takes 15 s and more on a CPU)."
    )
    warm_l2: bool = Field(
        False, description="On cuda: data stay in the L2 cache from one timed call to the next, on both sides."
    )
    deep: bool = Field(
        False,
        description="Sanitizers, other shapes, counters for a correct kernel; a run's winner on cuda has them anyway.",
    )
    profile: Literal["time", "ncu"] = Field(
        "time", description="What a profile reads: time alone, or hardware counters by ncu too (cuda; takes seconds)."
    )
    tools: Annotated[ToolChoices, NoDecode] = Field(
        ToolChoices(),
        description="Who serves compile, run, profile, coder, evaluator or embedder, as JSON (a table in htam.toml).",
    )
    mcp: Annotated[McpChoices, NoDecode] = Field(
        McpChoices(),
        description="MCP servers that tools may name, in the form of desktop clients, as JSON (a table in htam.toml).",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["console", "json"] = Field("console", description="Form of the log lines on stderr.")

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @field_validator("strategies", mode="before")
    @classmethod
    def _split_paths(cls, value: object) -> object:
        """A variable of the environment holds several paths as PATH does."""
        return tuple(part for part in value.split(os.pathsep) if part) if isinstance(value, str) else value

    @field_validator("approve", mode="before")
    @classmethod
    def _split_words(cls, value: object) -> object:
        """Words separated by commas."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("tools", "mcp", mode="before")
    @classmethod
    def _parse_table(cls, value: object) -> object:
        return from_text(value)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """`load` reads the layers itself, since it must know which one each value came from."""
        return (init_settings,)

    @classmethod
    def load(
        cls, overrides: Mapping[str, object] | None = None, given: Literal["command line", "call"] = "command line"
    ) -> Settings:
        """All layers merged; `overrides` come from where `given` says (absent means: not given).

        Raises SettingsError for an unknown key, a value that does not fit or a file that cannot be read.
        """
        merged: dict[str, object] = {}
        origins: dict[str, Origin] = {}
        for origin, values in cls._layers(overrides or {}, given):
            merged.update(values)
            origins.update(dict.fromkeys(values, origin))
        try:
            settings = cls.model_validate(merged)
        except ValidationError as error:
            raise _refusal(error, origins) from error
        settings._origins.update(origins)
        return settings

    @classmethod
    def _layers(cls, overrides: Mapping[str, object], given: Origin) -> list[tuple[Origin, dict[str, object]]]:
        toml = _read_toml(Path(TOML_FILE))
        try:
            environment = EnvSettingsSource(cls)()
            # A variable of the environment must not hide that .env has the key too, hence no merging here.
            dotenv = DotEnvSettingsSource(cls)
            in_file = {name.lower(): value for name, value in dotenv.env_vars.items()}
        except (SourceError, OSError, UnicodeDecodeError) as error:
            message = f"{ENV_FILE} or the environment cannot be read: {error}."
            raise SettingsError(message, "Mend or remove it.") from error
        prefix = PREFIX.lower()
        from_file: dict[str, object] = {
            name.removeprefix(prefix): value for name, value in in_file.items() if name.startswith(prefix) and value
        }
        _refuse_unknown(toml, TOML_FILE)
        _refuse_unknown(from_file, ENV_FILE, PREFIX)
        _refuse_unknown(overrides, f"the {given}")
        return [
            ("htam.toml", toml),
            (".env", from_file),
            ("environment", environment),
            (given, dict(overrides)),
        ]

    def over(self, stored: Mapping[str, object]) -> Settings:
        """These settings for a run that began under `stored` ones: the stored win over defaults, htam.toml and .env,
        and lose to what is given on the command line or in the environment. A memory folder that is given turns a
        stored server off."""
        given = {name for name in stored if self.is_given(name)}
        if "memory" in given and "chroma_url" not in given:
            stored = {**stored, "chroma_url": None}
        return self.model_copy(update={name: value for name, value in stored.items() if name not in given})

    def is_given(self, name: str) -> bool:
        """Whether this setting comes from the command line, the environment or a call: from now, not from a file."""
        return self._origin(name) in ("environment", "command line", "call")

    def explain(self) -> list[Explained]:
        """Every setting with its value (secrets masked) and where it came from, in the order of the fields."""
        return [Explained(name, _shown(getattr(self, name)), self._origin(name)) for name in type(self).model_fields]

    def _origin(self, name: str) -> Origin:
        given: Origin = "command line" if name in self.model_fields_set else "default"
        return self._origins.get(name, given)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """HTAM_* variables that name no setting: most likely typing errors, which no layer would report otherwise."""
    known = {_variable(name) for name in Settings.model_fields} | NOT_SETTINGS
    return sorted(name for name in environment if name.upper().startswith(PREFIX) and name.upper() not in known)


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _shown(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, tuple):
        return (os.pathsep if any(isinstance(part, Path) for part in value) else ",").join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_toml(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}.", "Mend the line, or remove the file.") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", "Make it readable, or remove it.") from error


def _refuse_unknown(values: Mapping[str, object], layer: str, prefix: str = "") -> None:
    """`prefix` is how this layer spells names: HTAM_STEPS, or steps where it is empty."""
    for name in values:
        if name not in Settings.model_fields:
            near = difflib.get_close_matches(name, Settings.model_fields, n=1)
            known, *guess = [_variable(word) if prefix else word for word in (name, *near)]
            hint = f"Did you mean {guess[0]}? " if guess else ""
            raise SettingsError(
                f"{layer} sets {known!r}, which is no setting.", f"{hint}`htam config` lists the settings."
            )


def _refusal(error: ValidationError, origins: Mapping[str, Origin]) -> SettingsError:
    """The first value that does not fit, in one sentence. A secret is never repeated."""
    first = next(item for item in error.errors(include_input=True) if item["type"] != "default_factory_not_called")
    name = str(first["loc"][0])
    origin = origins.get(name, "default")
    spelled = {".env": _variable(name), "environment": _variable(name), "command line": "--" + name.replace("_", "-")}
    # Tables of servers hold keys too.
    value = "" if name.endswith("api_key") or name == "mcp" else f" = {first['input']!r}"
    where = {"environment": "the environment", "command line": "the command line", "call": "the call"}.get(
        origin, origin
    )
    reason = first["msg"].removeprefix("Input ").removeprefix("Value error, ").rstrip(".")
    reason = "is no key that is known here" if first["type"] == "extra_forbidden" else reason
    return SettingsError(
        f"{_key(spelled.get(origin, name), first['loc'])}{value} (from {where}) does not fit: it {reason}.",
        f"{Settings.model_fields[name].description} `htam config` shows every setting and where it came from.",
    )


def _key(name: str, place: tuple[int | str, ...]) -> str:
    """The setting, with the way to the key of its table that is meant."""
    return ".".join([name, *map(str, place[1:])])
