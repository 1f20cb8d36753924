"""From settings to the run-time context: which coder, which memory, which evaluator."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from htam_agent.errors import SettingsError
from htam_agent.runs.records import RunOptions, RunSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.tools import BaseTool

    from htam_agent.coding.base import Coder
    from htam_agent.coding.chat import Chat
    from htam_agent.evaluation.bench import Bench
    from htam_agent.graph.context import BenchFactory, BenchLike, Context
    from htam_agent.graph.directing import Director
    from htam_agent.memory.embed import Embedder
    from htam_agent.memory.store import MemoryStore
    from htam_agent.settings import Settings
    from htam_agent.swapping.bench import Swapped
    from htam_agent.swapping.chosen import Chosen
    from htam_agent.task import Task
    from htam_agent.words import Backend, Protocol


def run_options(settings: Settings) -> RunOptions:
    """The options of a run that starts under these settings.

    Raises BackendUnavailable when the wanted backend does not work here, SettingsError where another machine judges and
    its backend is not named.
    """
    from htam_agent.swapping.chosen import coder_name

    seed = settings.seed
    if seed is None and settings.replay is not None:
        from htam_agent.coding.recording import read_head

        seed = read_head(settings.replay).seed
    seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    return RunOptions(
        backend=_backend(settings),
        coder=coder_name(settings),
        steps=settings.steps,
        precision=settings.precision,
        protocol=settings.protocol,
        policy=settings.policy,
        memory_mode=settings.memory_mode,
        candidates=settings.candidates,
        repairs=settings.repairs,
        director=settings.director,
        evaluator=settings.evaluator,
        approve=settings.approve,
        seed=seed,
        max_seconds=settings.max_seconds,
        max_cost=settings.max_cost,
        max_tokens=settings.max_tokens,
        no_progress_steps=settings.no_progress_steps,
        compile_baseline=settings.compile_baseline,
        warm_l2=settings.warm_l2,
        deep=settings.deep,
        profile=settings.profile,
        build_seconds=settings.build_seconds,
        run_seconds=settings.run_seconds,
        total_seconds=settings.total_seconds,
        hang_memory=settings.hang_memory,
    )


def _backend(settings: Settings) -> Backend:
    """What works here, or, where another machine judges, what is said of that one."""
    from htam_agent.backends.registry import choose_backend

    if settings.evaluator == "local":
        return choose_backend(settings.backend).name
    if settings.backend == "auto":
        raise SettingsError(
            "Another machine judges (evaluator = external), and which backend it has is not known here.",
            "Name it: --backend cuda or --backend cpp.",
            "backend-external",
        )
    return settings.backend


def make_director(options: RunOptions, settings: Settings, chat: Chat | None) -> Director | None:
    """Who chooses directions; None for the score alone. Raises SettingsError when the prompt does not fit."""
    if options.director == "score" or chat is None:
        return None
    from htam_agent.coding.prompting import Prompts
    from htam_agent.graph.directing import ModelDirector

    return ModelDirector(chat, functools.partial(Prompts(settings.prompts).render, "direct"))


def open_memory(settings: Settings, embedder: Embedder | None = None, *, own_strategies: bool = True) -> MemoryStore:
    """The memory store that the settings name, seeded, with the user's strategies (unless `own_strategies` is off): new
    and changed ones are tried first (memory/trial.py). `embedder` None: the one that the settings choose.

    Raises StoreError when it cannot be opened, a strategy file does not fit, or a strategy's kernel is wrong,
    SettingsError for the embedder. Nothing of the user's strategies is then stored.
    """
    from htam_agent.memory.seedfiles import load_strategies
    from htam_agent.memory.store import MemoryStore
    from htam_agent.memory.trial import add_tried

    if embedder is None and settings.tools.embedder is not None:
        from htam_agent.swapping.chosen import implementation

        embedder = cast("Embedder | None", implementation("embedder", settings))

    own = load_strategies(settings.strategies, "user") if settings.strategies and own_strategies else {}
    store = MemoryStore.open(settings.memory, settings.chroma_url, embedder)
    try:
        add_tried(own.values(), store, settings)
    except BaseException:
        store.close()
        raise
    return store


def make_coder(options: RunOptions, settings: Settings, memory: MemoryStore, chat: Chat | None) -> Coder:
    """The coder of a run. Raises SettingsError when a prompt does not fit."""
    if options.coder == "template" or chat is None:
        from htam_agent.coding.template import TemplateCoder

        return TemplateCoder(lambda: memory.strategies)
    from htam_agent.coding.model import ModelCoder

    coder = ModelCoder(chat, settings.prompts)
    coder.prompts()
    return coder


def check_prompts(options: RunOptions, settings: Settings) -> None:
    """Raises SettingsError when a prompt of the user's folder does not fit: before a model is asked anything."""
    if settings.prompts is not None and "model" in (options.coder, options.director):
        from htam_agent.coding.prompting import Prompts

        Prompts(settings.prompts)


def open_bench(
    task: Task,
    options: RunOptions,
    folder: Path,
    protocols: Sequence[Protocol] | None = None,
    *,
    swapped: Swapped | None = None,
) -> Bench:
    """An evaluator of this task; its processes start when it is opened. `protocols` get a verdict besides the one that
    decides (None: those that cost no further call). `swapped`: parts of it that the settings replace."""
    from htam_agent.evaluation.bench import Limits
    from htam_agent.swapping.bench import Swapped, SwappedBench

    bench = SwappedBench(
        task,
        backend=options.backend,
        precision=options.precision,
        protocol=options.protocol,
        protocols=protocols,
        policy=options.policy,
        folder=folder,
        hang_memory=options.hang_memory,
        limits=Limits(
            build_seconds=options.build_seconds,
            run_seconds=options.run_seconds,
            total_seconds=options.total_seconds,
        ),
        compile_baseline=options.compile_baseline,
        warm_l2=options.warm_l2,
        counters=options.profile == "ncu",
        compiler=swapped.compiler if swapped else None,
    )
    bench.swapped = swapped or Swapped()
    return bench


def bench_factory(chosen: Chosen) -> BenchFactory:
    """Opens evaluators as the settings choose them."""
    factory = chosen.evaluator
    if factory is None:
        return functools.partial(open_bench, swapped=chosen.swapped)

    def made(task: Task, options: RunOptions, folder: Path) -> BenchLike:
        from htam_agent.swapping.evaluators import made_evaluator

        return made_evaluator(factory, task, options, folder)

    return made


def make_tools(bench: BenchLike) -> Mapping[str, BaseTool]:
    """The tools compile, run and profile on this bench."""
    from htam_agent.tools import registry
    from htam_agent.tools.base import ToolBench

    assert isinstance(bench, ToolBench), "every evaluator is checked for these methods when it is made"
    return registry.make_tools(bench)


def make_context(settings: Settings, options: RunOptions, folder: Path | None = None) -> Context:
    """A context for one run in `folder`, or, without one, for any number of runs under the settings' runs folder."""
    from htam_agent.coding.opening import open_chat
    from htam_agent.coding.prices import PriceTable
    from htam_agent.graph.context import Context
    from htam_agent.graph.external import open_external
    from htam_agent.swapping.chosen import choose

    chosen = choose(settings, options.backend)
    prices = PriceTable.load(settings.prices)
    check_prompts(options, settings)
    resumed = folder is not None and (folder / "run.json").exists()
    chat, preflights = open_chat(options, settings, prices, resumed)
    memory = open_memory(settings, chosen.embedder)
    try:
        coder = chosen.coder or make_coder(options, settings, memory, chat)
        director = make_director(options, settings, chat)
    except BaseException:
        memory.close()
        raise
    return Context(
        options=options,
        memory=memory,
        coder=coder,
        chat=chat,
        prices=prices,
        preflights=preflights,
        open_bench=open_external if options.evaluator == "external" else bench_factory(chosen),
        director=director,
        make_tools=make_tools,
        runs=settings.runs,
        runs_cap_bytes=settings.runs_cap_bytes,
        folder=folder,
        settings=RunSettings.of(settings),
    )
