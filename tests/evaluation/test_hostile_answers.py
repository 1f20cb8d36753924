"""Answers of a hostile process: whatever it says its outputs are, nobody but itself fails."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from htam_agent.evaluation import verify
from htam_agent.evaluation.messages import Answer, Ask, Judge
from htam_agent.evaluation.trees import DEEPEST, flatten, specs_of
from htam_agent.verdict import RunResult
from tests.evaluation.samples import candidate

EXPECTED = {"a": torch.ones(2, 3), "b": (torch.ones(2), 3)}
TREE, TENSORS = flatten(EXPECTED)

kinds = st.sampled_from(["tensor", "value", "dtype", "list", "tuple", "dict"])
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**4000)
leaves = st.fixed_dictionaries({"kind": kinds}, optional={"index": st.integers(-2, 3), "value": values})
trees = st.recursive(
    leaves,
    lambda items: st.fixed_dictionaries(
        {"kind": kinds, "items": st.lists(items, max_size=3)},
        optional={"keys": st.lists(st.sampled_from("ab\ud800"), max_size=3), "index": st.integers(-1, 2)},
    ),
    max_leaves=6,
)
honest = st.just(json.loads(TREE.model_dump_json()))
numbers = st.lists(st.integers(-2, 4) | st.sampled_from([2**40, 2**62, 2**63, 10**30]), max_size=3)
specs = st.fixed_dictionaries(
    {"shape": numbers, "stride": numbers, "dtype": st.sampled_from(["float32", "no such", "nn", "\x00"])},
    optional={"offset": st.sampled_from([0, -1, 512, 2**70])},
) | st.sampled_from([spec.model_dump() for spec in specs_of(TENSORS)])


@given(trees | honest, st.lists(specs, max_size=3))
@settings(deadline=None)
def test_any_claim_about_outputs_is_nonsense_or_is_compared(tree: object, tensors: list[object]) -> None:
    text = json.dumps({"ok": True, "outputs": tree, "tensors": tensors})
    try:
        answer = Answer.model_validate_json(text)
    except ValidationError:
        return
    assert answer.outputs is not None
    judge = Judge(outputs=answer.outputs, tensors=answer.tensors, protocols=["strict"])
    again = Ask.model_validate_json(Ask(judge=judge).model_dump_json()).judge
    assert again is not None
    mismatch = verify.compare_tree(again.outputs, again.tensors, TREE, TENSORS)
    same = [(spec.shape, spec.dtype) for spec in answer.tensors] == [(s.shape, s.dtype) for s in specs_of(TENSORS)]
    assert (mismatch == "") == (answer.outputs == TREE and same)


@pytest.mark.parametrize("depth", [DEEPEST - 1, DEEPEST + 2, 60, 5000])
def test_deep_claims_are_nonsense(depth: int) -> None:
    text = '{"kind":"list","items":[' * depth + '{"kind":"value"}' + "]}" * depth
    text = f'{{"ok":true,"outputs":{text}}}'
    if depth > DEEPEST:
        with pytest.raises(ValidationError):
            Answer.model_validate_json(text)
    else:
        outputs = Answer.model_validate_json(text).outputs
        assert outputs is not None
        Ask.model_validate_json(Ask(judge=Judge(outputs=outputs, tensors=[], protocols=[])).model_dump_json())


LIES = {
    "keys without items": 'tree.model_construct(kind="dict", keys=["a"], items=[])',
    "an index that is not there": 'tree.model_construct(kind="tensor", index=7, items=[], keys=[])',
    "an endless number": 'tree.model_construct(kind="value", value=10**5000, items=[], keys=[])',
}
FORGING = """
import sys
from htam_agent.evaluation import candidate as inside
from htam_agent.evaluation.trees import Tree as tree
sys.set_int_max_str_digits(0)
given = inside.Candidate._hand_over
inside.Candidate._hand_over = lambda self, outputs: given(self, outputs).model_copy(update={{"outputs": {lie}}})
"""


def test_files_that_forge_the_form_of_their_outputs_fail_one_after_the_other(judge: Callable[..., RunResult]) -> None:
    for name, lie in LIES.items():
        result = judge(candidate() + FORGING.format(lie=lie))
        assert result.verdict == "failed", (name, result)
        assert "nonsense" in result.reason or "crash" in result.reason or "integer" in result.reason, (name, result)
    assert judge(candidate()).verdict == "correct"
