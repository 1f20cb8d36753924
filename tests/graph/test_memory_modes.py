"""Each memory mode through the whole graph: kept in the manifest, named in the result, learned from or not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast, get_args

import pytest
from langgraph.runtime import RunControl

from benchmarks.ablations.bench import TableBench
from htam_agent.api import optimize, resume
from htam_agent.coding.base import Code
from htam_agent.errors import InfrastructureError, SettingsError
from htam_agent.graph.build import build_graph
from htam_agent.graph.checkpoints import open_checkpoints
from htam_agent.graph.requests import with_pitfalls
from htam_agent.graph.runner import Interrupted, run_graph
from htam_agent.memory.model import Experience, ScoredStrategy
from htam_agent.memory.modes import MemoryMode
from htam_agent.memory.store import MemoryStore
from htam_agent.runs.folder import RunFolder
from htam_agent.runs.records import Result, RunManifest, RunOptions
from htam_agent.services import run_options
from htam_agent.settings import Settings
from htam_agent.verdict import CompileResult, RunResult
from tests.support.endpoint import Reply, completion, scripted
from tests.support.instant import TASK, answer, settings_of
from tests.support.memory import STRATEGIES, experience, index
from tests.support.table_run import POINTWISE, small_table, table_context, table_memory

if TYPE_CHECKING:
    from htam_agent.graph.context import Context

MODES: tuple[MemoryMode, ...] = get_args(MemoryMode)


@dataclass
class Outcome:
    """Two runs of one task in one mode, one after the other, with one memory."""

    results: list[Result]
    manifests: list[RunManifest]
    learned: list[Experience]
    directions_of: dict[str, str]
    """Strategy -> its direction."""


def two_runs(folder: Path, mode: MemoryMode) -> Outcome:
    results, manifests = [], []
    with closing(table_memory(folder / "memory")) as memory:
        for place, task in enumerate((POINTWISE, POINTWISE)):
            options = RunOptions(backend="cpp", steps=2, seed=100 * place, memory_mode=mode)
            context = table_context(folder / f"run{place}", memory, options)
            run = context.start_run(task)
            results.append(run_graph(context, task, run, lambda event: None))
            manifests.append(run.manifest())
        directions = {name: strategy.direction for name, strategy in memory.strategies.items()}
        return Outcome(results, manifests, list(memory.experiences), directions)


@pytest.fixture(scope="module", params=MODES)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryMode, Outcome]:
    return request.param, two_runs(tmp_path_factory.mktemp("mode"), request.param)


def test_the_mode_is_kept_and_named(outcome: tuple[MemoryMode, Outcome]) -> None:
    mode, found = outcome
    assert [manifest.options.memory_mode for manifest in found.manifests] == [mode, mode]
    assert [result.memory_mode for result in found.results] == [mode, mode]
    assert all(result.steps for result in found.results)
    report = (Path(found.results[0].run) / "report.md").read_text(encoding="utf-8")
    assert (f"memory mode: {mode}" in report) == (mode != "full")


def test_every_step_is_of_its_strategys_direction(outcome: tuple[MemoryMode, Outcome]) -> None:
    _, found = outcome
    steps = [step for result in found.results for step in result.steps]
    assert [step.direction for step in steps] == [found.directions_of[step.strategy] for step in steps]
    assert [e.direction for e in found.learned] == [found.directions_of[e.strategy] for e in found.learned]


def test_every_judged_step_is_learned_but_in_no_update(outcome: tuple[MemoryMode, Outcome]) -> None:
    mode, found = outcome
    judged = [(RunFolder(Path(result.run)).key, step.step) for result in found.results for step in result.steps]
    learned = [(experience.run, experience.step) for experience in found.learned]
    assert sorted(learned) == ([] if mode == "no-update" else sorted(judged))


def test_no_update_begins_every_run_from_the_same_memory(tmp_path: Path) -> None:
    def second(mode: MemoryMode) -> list[str]:
        found = two_runs(tmp_path / mode, mode)
        return [step.why for step in found.results[1].steps]

    def alone() -> list[str]:
        with closing(table_memory(tmp_path / "fresh")) as memory:
            options = RunOptions(backend="cpp", steps=2, seed=100, memory_mode="no-update")
            context = table_context(tmp_path / "alone", memory, options)
            result = run_graph(context, POINTWISE, context.start_run(POINTWISE), lambda event: None)
            return [step.why for step in result.steps]

    untaught = alone()
    assert second("no-update") == untaught
    assert second("full") != untaught, "what the first run measured is read in the second"


def test_the_draws_of_random_and_none_follow_the_seed_and_nothing_else(tmp_path: Path) -> None:
    with closing(table_memory(tmp_path / "memory")) as memory:

        def path(seed: int, name: str, mode: MemoryMode) -> list[str]:
            options = RunOptions(backend="cpp", steps=2, seed=seed, memory_mode=mode)
            context = table_context(tmp_path / name, memory, options)
            result = run_graph(context, POINTWISE, context.start_run(POINTWISE), lambda event: None)
            return [step.strategy for step in result.steps]

        assert path(1, "a", "random") == path(1, "b", "random"), "although the first run was learned from"
        assert path(1, "c", "none") == path(1, "d", "none")
        assert len({tuple(path(seed, f"e{seed}", "none")) for seed in range(3)}) > 1


def test_a_resumed_run_goes_on_in_its_mode(tmp_path: Path) -> None:
    control = RunControl()
    learned = 0

    def stop_after_the_first_step(event: object) -> None:
        nonlocal learned
        learned += "learned" in str(event)
        if learned == 1:
            control.request_drain("test")

    with scripted(answer("1.2"), answer("1.5"), answer("1.8")) as server:
        given = settings_of(tmp_path, server.url, memory_mode="no-update")
        with pytest.raises(Interrupted):
            optimize(str(TASK), listen=stop_after_the_first_step, control=control, **given)
        result = resume(str(tmp_path / "run"), api_key="sk-x", preflight=False, memory_mode="full")
    assert result.memory_mode == "no-update"
    assert [step.verdict for step in result.steps] == ["correct"] * 3, result.reason
    with closing(MemoryStore.open(tmp_path / "memory")) as memory:
        assert len(memory.experiences) == 0, "neither before the pause nor after it"


def test_a_replayed_learn_writes_the_same_experiences(tmp_path: Path) -> None:
    with closing(table_memory(tmp_path / "memory")) as memory:
        context = table_context(tmp_path / "run", memory, RunOptions(backend="cpp", steps=2, seed=1))
        run = context.start_run(POINTWISE)
        run_graph(context, POINTWISE, run, lambda event: None)
        before = {experience.id: experience for experience in memory.experiences}
        replay_from_learn(run, context)
        after = {experience.id: experience for experience in memory.experiences}
        assert len(memory.experiences) == len(before) == 2
        unstamped = [{k: v.model_copy(update={"created": ""}) for k, v in found.items()} for found in (before, after)]
        assert unstamped[0] == unstamped[1]
    with closing(table_memory(tmp_path / "memory")) as again:
        assert {experience.id for experience in again.experiences} == before.keys(), "on disk too"


def replay_from_learn(run: RunFolder, context: object) -> None:
    """Goes back to the checkpoint before the first `learn` and runs the graph from there: the experiences that it
    writes are in the store already, as after a kill between the store and the checkpoint."""
    with open_checkpoints(run.path("checkpoints.sqlite")) as saver:
        graph = build_graph().compile(checkpointer=saver)
        history = list(graph.get_state_history({"configurable": {"thread_id": run.root.name}}))
        first = [snapshot for snapshot in history if snapshot.next == ("learn",)][-1]
        graph.invoke(None, {**first.config, "recursion_limit": 200}, context=context)


def test_a_step_is_in_the_store_before_its_checkpoint(tmp_path: Path) -> None:
    """The process ends between the two: the experience is on disk, the state does not know, a resume counts it once."""
    options = RunOptions(backend="cpp", steps=2, seed=1)
    with closing(table_memory(tmp_path / "memory")) as memory:
        context = table_context(tmp_path / "run", memory, options)
        stored = memory.add_experiences

        def store_and_end(records: Sequence[Experience]) -> None:
            stored(records)
            raise KeyboardInterrupt

        memory.add_experiences = store_and_end
        with pytest.raises(KeyboardInterrupt):
            run_graph(context, POINTWISE, context.start_run(POINTWISE), lambda event: None)
    with closing(table_memory(tmp_path / "memory")) as memory:
        key = RunFolder(tmp_path / "run").key
        assert [experience.id for experience in memory.experiences] == [f"{key}:1:0:0"]
        context = table_context(tmp_path / "run", memory, options)
        result = run_graph(context, POINTWISE, RunFolder(tmp_path / "run"), lambda event: None)
        assert [step.step for step in result.steps] == [1, 2]
        assert sorted(experience.id for experience in memory.experiences) == [f"{key}:1:0:0", f"{key}:2:0:0"]


def test_a_folder_that_is_used_again_rewrites_nothing_of_the_run_before(tmp_path: Path) -> None:
    """Experiences outlive their run's folder: another run in a folder of the same name must not take their ids."""
    with closing(table_memory(tmp_path / "memory")) as memory:
        for seed in (1, 2):
            context = table_context(tmp_path / "run", memory, RunOptions(backend="cpp", steps=1, seed=seed))
            run_graph(context, POINTWISE, context.start_run(POINTWISE), lambda event: None)
            shutil.rmtree(tmp_path / "run")
        assert len(memory.experiences) == 2


@dataclass
class FailingCoder:
    """Refuses, as a coder does whose budget is used up or whose model gave no file, after tokens were spent."""

    name: str = "failing"

    def initial_plan(self, operator: object, backend: object) -> None:
        return None

    def generate(self, request: object) -> Code:
        return Code(refusal="the model gave no usable file", prompt_tokens=10)

    def repair(self, request: object) -> Code:
        return Code(refusal="the budget is used up", prompt_tokens=10)


def test_refusals_are_no_experiences(tmp_path: Path) -> None:
    with closing(table_memory(tmp_path / "memory")) as memory:
        options = RunOptions(backend="cpp", steps=2, seed=1)
        context = table_context(tmp_path / "run", memory, options, FailingCoder())
        result = run_graph(context, POINTWISE, context.start_run(POINTWISE), lambda event: None)
        assert [step.verdict for step in result.steps] == ["failed", "failed"]
        assert len(memory.experiences) == 0


class GoneBench(TableBench):
    """Its machine fails as soon as a candidate is to be judged."""

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        raise InfrastructureError("The evaluator's machine is gone.", "Mend it.", "machine")


def test_broken_infrastructure_is_no_experience(tmp_path: Path) -> None:
    with closing(table_memory(tmp_path / "memory")) as memory:
        context = table_context(tmp_path / "run", memory, RunOptions(backend="cpp", steps=2, seed=1))
        context.open_bench = lambda task, options, folder: GoneBench(small_table(), task)
        with pytest.raises(InfrastructureError, match="machine is gone"):
            run_graph(context, POINTWISE, context.start_run(POINTWISE), lambda event: None)
        assert len(memory.experiences) == 0


@pytest.fixture(params=["full", "no-local", "none"])
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, Result]]:
    """Mode, everything that a model was sent in two steps, and the result."""
    mode = request.param
    with scripted(answer("1.2"), answer("1.5"), Reply(200, completion("nothing"))) as server:
        result = optimize(str(TASK), **settings_of(tmp_path, server.url, steps=2, memory_mode=mode))
        yield mode, "\n".join(str(body["messages"]) for body in server.requests), result


def test_a_model_is_not_told_what_the_mode_takes_away(asked: tuple[str, str, Result]) -> None:
    mode, text, result = asked
    assert ("The direction of this step" in text) == (mode != "none")
    assert ("Strategies under it" in text) == (mode == "full")
    assert all(bool(step.direction) == (mode != "none") for step in result.steps)
    assert "cpp-" not in text or mode == "full", "no strategy's name"
    assert result.memory_mode == mode


def test_the_mode_is_a_setting_of_a_closed_vocabulary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.load({}).memory_mode == "full"
    (tmp_path / "htam.toml").write_text('memory_mode = "no-prefix"\n')
    assert Settings.load({}).memory_mode == "no-prefix"
    monkeypatch.setenv("HTAM_MEMORY_MODE", "none")
    assert run_options(Settings.load({"backend": "cpp"})).memory_mode == "none"
    with pytest.raises(SettingsError, match=r"--memory-mode = 'flat'.*'no-hierarchy'"):
        Settings.load({"memory_mode": "flat"})


@pytest.mark.parametrize("mode", MODES)
def test_modes_that_draw_strategies_tell_of_no_pitfall_that_was_measured(mode: MemoryMode) -> None:
    failed = [
        experience(str(step), "wide", "wide-loads", None, step=step, verdict="wrong", cause="boundary")
        for step in (1, 2)
    ]
    options = RunOptions(backend="cpp", steps=1, seed=1, memory_mode=mode)
    context = cast("Context", SimpleNamespace(memory=index(*failed), options=options))
    shown = with_pitfalls(ScoredStrategy(strategy=STRATEGIES[0], score=0.0, why=""), context).strategy.pitfalls
    assert bool(shown) == (mode not in ("no-local", "random", "none"))
