"""`htam evaluate` on whatever people have: each file gets a verdict with stage and reason, and stops no other."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from htam_agent.schemas import FOLDER
from tests.cli.evaluate_samples import BAD, GOOD, HANG_SECONDS, write_all
from tests.evaluation.samples import candidate
from tests.support.command import Answer, htam

ELSEWHERE = {
    "folder.py": "it is a folder",
    "missing.py": "No such file",
    "binary.py": "not UTF-8",
    "pipe.py": "no regular file",
}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """All files in one command."""
    folder = tmp_path_factory.mktemp("evaluate")
    names = write_all(folder)
    arguments = ("--backend", "cpp", "--protocols", "strict", "--run-seconds", HANG_SECONDS, "--json")
    return htam("evaluate", "task.py", *names, *arguments, folder=folder)


@pytest.fixture(scope="module")
def verdicts(answer: Answer) -> dict[str, dict[str, object]]:
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    return {str(value["kernel"]): value for value in lines}


def test_every_file_has_one_object_of_the_schema_and_the_command_says_that_not_all_are_right(
    answer: Answer, verdicts: dict[str, dict[str, object]]
) -> None:
    assert answer.code == 1, answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(verdicts) == len(answer.stdout.splitlines()) == len(GOOD) + len(BAD) + len(ELSEWHERE)
    schema = json.loads((FOLDER / "evaluate.json").read_text(encoding="utf-8"))
    for value in verdicts.values():
        jsonschema.validate(value, schema)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_good_kernel_in_any_form_is_correct(verdicts: dict[str, dict[str, object]], name: str) -> None:
    value = verdicts[f"{name}.py"]
    assert value["verdict"] == "correct", value["reason"]
    assert value["speedup"]["best"] > 0


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_kernel_is_a_failure_with_stage_and_reason(verdicts: dict[str, dict[str, object]], name: str) -> None:
    value, (_, stage, word) = verdicts[f"{name}.py"], BAD[name]
    assert (value["verdict"], value["stage"]) == ("failed", stage), value["reason"]
    assert value["reason"]
    assert word in str(value["reason"])


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_what_is_no_readable_file_fails_at_load(verdicts: dict[str, dict[str, object]], name: str) -> None:
    value = verdicts[name]
    assert (value["verdict"], value["stage"]) == ("failed", "load")
    assert ELSEWHERE[name] in str(value["reason"])


def test_a_task_that_is_too_large_is_said_so_and_nothing_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "huge.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
        "def get_inputs():\n    return [torch.zeros(1 << 46)]\n",
        encoding="utf-8",
    )
    (tmp_path / "k.py").write_text(candidate(), encoding="utf-8")
    answer = htam("evaluate", "huge.py", "k.py", "--backend", "cpp", "--json", folder=tmp_path)
    assert answer.code == 2
    assert answer.error["code"] == "task-too-large"
    assert "too large" in answer.error["message"]
