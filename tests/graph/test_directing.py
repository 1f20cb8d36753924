"""Who chooses a direction: the score, or a model over loopback HTTP among the best scored."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from htam_agent.coding.prompting import Prompts
from htam_agent.graph.directing import ModelDirector
from htam_agent.graph.runner import run_graph
from htam_agent.runs.records import Directed, Result
from tests.support.chat import chat_of
from tests.support.endpoint import Reply, ScriptedEndpoint, completion, failure, scripted
from tests.support.pausing import TASK, SayingCoder, context_of, options_of


def said(direction: str, reason: str = "It is the best.") -> Reply:
    return Reply(200, completion(json.dumps({"direction": direction, "reason": reason})))


def run(folder: Path, endpoint: ScriptedEndpoint, **more: object) -> Result:
    director = ModelDirector(chat_of(endpoint.url), functools.partial(Prompts().render, "direct"))
    options = options_of(director="model", **more)
    with context_of(folder, SayingCoder([["1.5"]]), options, director=director) as context:
        begun = context.start_run(TASK)
        context.folder = begun.root
        return run_graph(context, TASK, begun, lambda event: None)


def directed(result: Result, step: int = 0) -> Directed:
    found = result.steps[step].directed
    assert found is not None
    return found


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The directions of the first step, best first, as a run that the score directs keeps them."""
    folder = tmp_path_factory.mktemp("score")
    with context_of(folder, SayingCoder([["1.5"]]), options_of()) as context:
        begun = context.start_run(TASK)
        context.folder = begun.root
        result = run_graph(context, TASK, begun, lambda event: None)
    assert directed(result) == Directed(by="score")
    kept = json.loads((begun.root / "directions" / "0001-0.json").read_text(encoding="utf-8"))
    return [one["direction"] for one in kept["offered"]]


def test_a_model_chooses_among_the_best_scored(tmp_path: Path, best: list[str]) -> None:
    with scripted(said(best[2], "Wide loads\nfirst.")) as endpoint:
        result = run(tmp_path, endpoint)
        prompt = str(endpoint.requests[0]["messages"])
    assert result.steps[0].direction == best[2]
    choice = directed(result)
    assert (choice.by, choice.reason, choice.structure, choice.tokens) == (
        "model",
        "Wide loads first.",
        "json-schema",
        18,
    )
    assert result.steps[0].tokens >= 18
    assert all(name in prompt for name in best[:5])
    assert best[-1] not in prompt or len(best) <= 5, "it sees the best few"


def test_an_endpoint_without_structured_output_is_asked_in_plain_text(tmp_path: Path, best: list[str]) -> None:
    plain = Reply(200, completion(f'Well.\n```json\n{{"direction": "{best[1]}", "reason": "Why not."}}\n```'))
    with scripted(failure(400, "response_format is not supported"), plain) as endpoint:
        result = run(tmp_path, endpoint)
    assert result.steps[0].direction == best[1]
    assert (directed(result).by, directed(result).structure) == ("model", "plain-json")


@pytest.mark.parametrize(
    ("reply", "words"),
    [(said("make-it-fast"), "not on offer"), (Reply(200, completion("I would rather not.")), "no choice")],
)
def test_a_bad_choice_falls_back_to_the_score_and_is_said(
    tmp_path: Path, best: list[str], reply: Reply, words: str
) -> None:
    with scripted(*[reply] * 4) as endpoint:
        result = run(tmp_path, endpoint)
    assert result.steps[0].direction == best[0]
    assert directed(result).by == "score"
    assert words in directed(result).note
    assert directed(result).tokens > 0, "what the answer cost counts"


def test_a_mode_that_draws_its_directions_asks_nobody(tmp_path: Path) -> None:
    with scripted() as endpoint:
        result = run(tmp_path, endpoint, memory_mode="random")
        assert endpoint.requests == []
    assert directed(result).by == "score"
    assert "random" in directed(result).note
