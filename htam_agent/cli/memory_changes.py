"""`htam memory`: export, import, merge, prune, remove and reset."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from htam_agent.cli.memory_store import opened, settings_of
from htam_agent.cli.options import JsonOption, MemoryOption
from htam_agent.cli.output import print_json
from htam_agent.errors import UsageError

if TYPE_CHECKING:
    from htam_agent.memory.merging import MergeReport, Records
    from htam_agent.memory.model import Strategy
    from htam_agent.memory.pruning import PruneReport
    from htam_agent.memory.store import MemoryStore
    from htam_agent.words import StepVerdict

KindName = Literal["directions", "strategies", "transitions", "experiences"]
PackArgument = Annotated[Path, typer.Argument(metavar="PACK", help="A JSONL file, as `htam memory export` writes it.")]
ConflictsOption = Annotated[
    Literal["refuse", "keep", "replace"],
    typer.Option("--conflicts", help="An id with other content here: refuse all, keep ours, or replace it."),
]
TrialOption = Annotated[
    bool, typer.Option("--trial/--no-trial", help="Render, build and verify the strategies that come in.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it.")]


def export_command(
    pack: PackArgument,
    kind: Annotated[KindName | None, typer.Option("--kind", help="Only records of this kind.")] = None,
    seed: Annotated[bool, typer.Option("--seed", help="The seed's records too, which every htam has.")] = False,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Write what was learned and added into a pack."""
    from htam_agent.memory.packs import write_pack
    from htam_agent.memory.records import KINDS
    from htam_agent.memory.view import MemoryExported

    with opened(memory) as store:
        header = write_pack(store, pack, (kind,) if kind else KINDS, seed=seed)
        place = store.place
    if as_json:
        report = MemoryExported(schema_="htam.memory/1", pack=str(pack), counts=header.counts, sha256=header.sha256)
        print_json(report.model_dump_json(by_alias=True))
        return 0
    typer.echo(f"{_numbers(header.counts)} from {place} in {pack}")
    return 0


def import_command(
    pack: PackArgument,
    conflicts: ConflictsOption = "refuse",
    trial: TrialOption = True,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take the records of a pack in, each counted once."""
    from htam_agent.memory.packs import read_pack

    _, records = read_pack(pack)
    return _merge(records, str(pack), conflicts, trial, memory, as_json)


def merge_command(
    source: Annotated[str, typer.Argument(metavar="PACK|DIR|URL", help="A pack, another memory, or a Chroma server.")],
    conflicts: ConflictsOption = "refuse",
    trial: TrialOption = True,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take the records of another memory (or a pack) in, each counted once. The other one stays as it is."""
    from htam_agent.memory.merging import read_memory
    from htam_agent.memory.packs import read_pack
    from htam_agent.memory.store import LOCK_WAIT_SECONDS

    records = read_pack(Path(source))[1] if Path(source).is_file() else read_memory(source, LOCK_WAIT_SECONDS)
    return _merge(records, source, conflicts, trial, memory, as_json)


def prune_command(
    older_than: Annotated[float | None, typer.Option("--older-than", min=0.0, help="Days since the step.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="A device's name, architecture or backend.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="A task's id or name.")] = None,
    verdict: Annotated[
        Literal["correct", "wrong", "failed", "quarantined", "at-floor"] | None,
        typer.Option("--verdict", help="Steps that ended so."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, help="Only those that say least, until so many are left.")
    ] = None,
    yes: YesOption = False,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove experiences. Without --yes it only says which would go."""
    from htam_agent.memory.pruning import PruneRule, prune

    ended: StepVerdict | None = verdict
    rule = PruneRule(older_than_days=older_than, device=device, task=task, verdict=ended, keep=keep)
    with opened(memory) as store:
        report = prune(store, rule, dry_run=not yes)
    if as_json:
        print_json(report.model_dump_json(by_alias=True))
    else:
        _tell_pruned(report)
    return 0


def remove_command(
    strategies: Annotated[list[str], typer.Argument(metavar="STRATEGY...", help="Ids of strategies that were added.")],
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove strategies of users; one of the seed that was overridden is in force again."""
    from htam_agent.memory.view import MemoryRemoved

    # Without the strategies that the settings name: they would be added again before they are removed.
    with opened(memory, own_strategies=False) as store:
        store.remove_strategies(strategies)
        restored = sorted(set(strategies) & set(store.strategies))
    report = MemoryRemoved(schema_="htam.memory/1", removed=sorted(set(strategies)), restored=restored)
    if as_json:
        print_json(report.model_dump_json(by_alias=True))
        return 0
    for name in report.removed:
        typer.echo(f"removed {name}" + (" (the seed's is in force again)" if name in restored else ""))
    return 0


def reset_command(
    yes: YesOption = False,
    discard: Annotated[bool, typer.Option("--discard", help="Remove the old memory instead of keeping it.")] = False,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Begin anew with the seed. The old memory is put beside it; it may be damaged or of another version."""
    from htam_agent.memory.resetting import reset_folder, reset_server
    from htam_agent.services import open_memory

    settings = settings_of(memory)
    place = settings.chroma_url or str(settings.memory)
    if not yes:
        _confirm(f"Begin anew in {place}?", as_json)

    def reopen(folder: Path | None = None) -> MemoryStore:
        """With the embedder of the settings; the strategies that they name come with the next run."""
        return open_memory(settings.model_copy(update={"memory": folder or settings.memory}), own_strategies=False)

    report = (
        reset_server(settings.chroma_url, reopen)
        if settings.chroma_url
        else reset_folder(settings.memory, discard=discard, reopen=reopen)
    )
    if as_json:
        print_json(report.model_dump_json(by_alias=True))
        return 0
    typer.echo(f"{report.strategies} strategies and {report.transitions} transitions of the seed in {report.place}")
    if report.aside:
        typer.echo(f"The old memory lies in {report.aside}")
    return 0


def _confirm(question: str, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise UsageError("A reset removes what was learned.", "Say --yes.", "memory-reset")
    typer.confirm(question, abort=True)


def _merge(
    records: Records,
    source: str,
    conflicts: Literal["refuse", "keep", "replace"],
    trial: bool,
    memory: Path | None,
    as_json: bool,
) -> int:
    from htam_agent.memory.merging import merge
    from htam_agent.memory.trial import check_slots, try_strategies

    def check(given: Sequence[Strategy]) -> list[str]:
        for strategy in given:
            check_slots(strategy)
        return try_strategies(given, store, settings) if trial else []

    settings = settings_of(memory)
    with opened(memory, make=True) as store:
        report = merge(store, records, source, conflicts=conflicts, check=check)
        place = store.place
    if as_json:
        print_json(report.model_dump_json(by_alias=True))
    else:
        _tell_merged(report, place)
    return 0


def _tell_merged(report: MergeReport, place: str) -> None:
    typer.echo(f"{_numbers(report.added)} from {report.source} are new in {place}")
    for what, numbers in (
        ("known already", report.known),
        ("kept as they were", report.kept),
        ("replaced", report.replaced),
        ("of another seed, left out", report.seed),
    ):
        if any(numbers.values()):
            typer.echo(f"  {what}: {_numbers(numbers)}")
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)


def _tell_pruned(report: PruneReport) -> None:
    word = "removed" if report.done else "would go"
    typer.echo(f"{len(report.going)} of {report.experiences} experiences {word}")
    for what, numbers in (("verdict", report.by_verdict), ("device", report.by_device), ("task", report.by_task)):
        for name, number in numbers.items():
            typer.echo(f"  {what:<8} {name}: {number}")
    if report.going and not report.done:
        typer.echo("Nothing was removed; --yes removes them.")


def _numbers(counts: Mapping[KindName, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in counts.items() if number) or "no records"
