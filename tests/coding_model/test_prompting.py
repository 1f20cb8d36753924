"""Prompts: built in, a user's, broken ones; and what the model reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.api import optimize
from htam_agent.backends.base import Backend, DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.backends.cuda import CudaBackend
from htam_agent.coding.assembly import assemble
from htam_agent.coding.base import RepairRequest
from htam_agent.coding.examples import DIRECT, example_failure, example_request, render_examples
from htam_agent.coding.fences import fenced_blocks
from htam_agent.coding.parsing import parse_answer
from htam_agent.coding.prompting import LIMIT_TOKENS, NAMES, Prompts, fenced
from htam_agent.coding.shortening import estimated_tokens, shorter
from htam_agent.coding.values import code_values, no_file_values, readable, repair_values, tensor_words
from htam_agent.errors import SettingsError
from htam_agent.evaluation.policy import inspect_source
from htam_agent.operator import TensorInfo
from tests.support.endpoint import scripted
from tests.support.instant import TASK, settings_of

PROMPTS = Prompts()


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return render_examples(Prompts())


def test_the_first_prompt_holds_what_a_coder_needs(rendered: dict[str, str]) -> None:
    text = rendered["code-first-cpp"]
    for said in (
        "class Model(nn.Module)", "float32 [1024, 1024]", "aten.relu", "8.389 MB", "a processor", "10 GB/s", "floor",
        "own-kernels-only", "Move bytes in wide pieces.", "the kernel waits for memory", "wide-loads",
        "the tail needs care", "vector_width = 4", "<plan.vector_width> elements at once;",
    ):  # fmt: skip
        assert said in text
    assert "best kernel so far" not in text


def test_later_prompts_hold_the_best_kernel_and_the_history(rendered: dict[str, str]) -> None:
    text = rendered["code-later-cpp"]
    for said in (
        "It takes 1 ms",
        "2 times faster than the baseline to beat",
        "measured between 1.9 and 2.1",
        "Bound by memory.",
        "CPP_SRC = ''",
        "correct, 1.2x",
    ):
        assert said in text


def test_each_backend_reads_its_own_contract(rendered: dict[str, str]) -> None:
    assert "load_kernels(CPP_SRC)" in rendered["system-cpp"]
    assert "CUDA" not in rendered["system-cpp"]
    assert "CudaKernels(CUDA_SRC)" in rendered["system-cuda"]
    assert "sm_90" in rendered["system-cuda"]
    assert "g++" not in rendered["system-cuda"]


def test_the_repair_prompt_carries_the_evidence(rendered: dict[str, str]) -> None:
    assert "at [0, 3]: 1 instead of 2" in rendered["repair-boundary-cpp"]
    assert "results differ" in rendered["repair-boundary-cpp"]


def test_no_prompt_shows_a_hole(rendered: dict[str, str]) -> None:
    for text in rendered.values():
        assert "None" not in text.replace("restype = None", "")
        assert "Undefined" not in text
        assert "\n\n\n\n" not in text


def test_a_users_prompt_wins_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "repair.md").write_text("Mend it: {{ reason }}")
    (tmp_path / "code-cuda.md").write_text("CUDA, please. {% include 'parts/rules.md' %}")
    prompts = Prompts(tmp_path)
    assert {name: file.origin for name, file in prompts.files.items()} == {
        "system-cpp": "built-in", "system-cuda": "built-in", "code-cpp": "built-in", "code-cuda": "user",
        "repair": "user", "direct": "built-in",
    }  # fmt: skip
    rendered = render_examples(prompts)
    assert rendered["repair-values-cpp"] == rendered["repair-values-cuda"] == "Mend it: x1 #1: outputs differ\n"
    assert rendered["code-first-cuda"].startswith("CUDA, please. Precision")
    assert rendered["code-first-cpp"].startswith("# Step 1")


def test_a_users_part_wins_in_every_prompt_that_includes_it(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "rules.md").write_text("Rules of our house ({{ policy }}).")
    prompts = Prompts(tmp_path)
    assert "Rules of our house (own-kernels-only)." in render_examples(prompts)["code-first-cuda"]
    assert "parts/rules.md (user)" in prompts.files["code-cpp"].parts
    assert "parts/operator.md (built-in)" in prompts.files["code-cpp"].parts


@pytest.mark.parametrize("name", ["generate.md", "repiar.md", "code-hip.md"])
def test_a_file_that_is_no_prompt_is_not_left_unread_in_silence(tmp_path: Path, name: str) -> None:
    (tmp_path / "README.md").write_text("Ours.")
    Prompts(tmp_path)
    (tmp_path / name).write_text("text")
    with pytest.raises(SettingsError, match="no prompt") as caught:
        Prompts(tmp_path)
    assert name in caught.value.message
    assert "code-cuda.md" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ secret_variable }}", "secret_variable"),
        ("{% for x in %}", "does not parse"),
        ("{{ reason | no_such_filter }}", "no_such_filter"),
        ("{% include 'parts/missing.md' %}", "does not exist"),
        ("{% include reason %}", "computed"),
        ("{% include '../secret.md' %}", "does not exist"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_when_it_is_loaded(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "repair.md").write_text(text)
    with pytest.raises(SettingsError, match=said) as caught:
        Prompts(tmp_path)
    assert "repair.md" in caught.value.message


def test_a_part_that_does_not_fit_the_prompt_is_named(tmp_path: Path) -> None:
    (tmp_path / "repair.md").write_text("{% include 'parts/rules.md' %}")
    with pytest.raises(SettingsError, match=r"parts/rules\.md uses policy, precision, which repair does not have"):
        Prompts(tmp_path)


@pytest.mark.parametrize(
    "text", ["{{ reason.__class__.__mro__ }}", "{{ 1 / 0 }}", "{{ tried[99] }}", "{{ reason.nothing }}"]
)
def test_a_prompt_that_fails_when_it_is_rendered_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "repair.md").write_text(text)
    with pytest.raises(SettingsError, match=r"repair\.md"):
        render_examples(Prompts(tmp_path))


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HTAM_PROMPTS"):
        Prompts(tmp_path / "nowhere")


def test_values_are_never_templates() -> None:
    request = example_request("cpp").model_copy(update={"task_source": "{{ 7 * 191 }} {% raw %}"})
    text = Prompts().render("code", code_values(request))
    assert "{{ 7 * 191 }} {% raw %}" in text
    assert "1337" not in text


def test_without_source_the_traced_calls_speak() -> None:
    request = example_request("cpp").model_copy(update={"task_source": ""})
    text = Prompts().render("code", code_values(request))
    assert "relu = aten.relu.default(x) -> float32 [1024, 1024]" in text


def test_strides_are_named_where_they_matter() -> None:
    plain = TensorInfo(name="x", shape=(2, 3), dtype="float32", stride=(3, 1))
    assert tensor_words(plain) == "x: float32 [2, 3]"
    turned = plain.model_copy(update={"stride": (1, 2)})
    assert "not contiguous" in tensor_words(turned)


@given(st.text(), st.sampled_from(["", "python"]))
def test_a_fence_cannot_end_early(text: str, language: str) -> None:
    blocks = fenced_blocks(fenced(text, language))
    assert len(blocks) == 1
    assert blocks[0].closed
    assert blocks[0].text == "\n".join(text.rstrip().splitlines())


def test_the_names_are_those_of_the_files() -> None:
    folder = Path(__file__).resolve().parents[2] / "prompts"
    assert {path.stem.rpartition("-")[0] or path.stem for path in folder.glob("*.md")} == set(NAMES)


@pytest.mark.parametrize("backend", [CppBackend(), CudaBackend("sm_90")], ids=["cpp", "cuda"])
def test_the_example_in_the_contract_keeps_the_contract(backend: Backend, tmp_path: Path) -> None:
    """What the model is shown passes the policy and really builds."""
    if not backend.can_build().ok:
        pytest.skip(backend.can_build().reason)
    shown = render_examples(Prompts())[f"system-{backend.name}"]
    parsed = parse_answer(shown, backend.name)
    assert parsed.problem == ""
    found = inspect_source(assemble(parsed.source, backend.name), backend.name, "own-kernels-only")
    assert found.reason == ""
    assert not found.deferred
    built = backend.build(found.source, tmp_path, DefaultLimits())
    assert built.ok, built.log


def test_a_template_is_shown_without_the_generators_choices() -> None:
    block = """{% for item in walk.reductions %}
{{ item.type }} acc_{{ item.name }} = {{ item.identity }};
{% endfor %}

#pragma omp simd{% if plan.x %} simdlen({{ 16 * plan.unroll }}){% endif %} // {{ 'of_' ~ item.name ~ item.value if x }}
"""
    assert readable(block) == (
        "<item.type> acc_<item.name> = <item.identity>;\n\n#pragma omp simd simdlen(<16 * plan.unroll>) // <...>"
    )


hostile = st.text(alphabet="`~#\n ab{}%<>/", max_size=60)


@settings(max_examples=25, deadline=None)
@given(hostile, hostile)
def test_generated_text_stays_in_its_fences(first: str, second: str) -> None:
    """Whatever a kernel's log, a task's comment, a name or a model's reason holds, what stands outside of the fences is
    the same."""

    def outside(texts: tuple[str, str]) -> list[str]:
        one, other = f"x {texts[0]} x", f"y\n{texts[1]}\ny"
        request = example_request("cuda", first=False)
        best = request.best
        assert best is not None
        assert best.profile is not None
        tensor = request.operator.inputs[0].model_copy(update={"name": one})
        scored = request.strategies[0]
        strategy = scored.strategy.model_copy(update={"how": other, "block": other, "pitfalls": [one], "title": other})
        device = {"name": other, "compiler": one, "torch": other, "libraries": {"simd": other}}
        asked = request.model_copy(
            update={
                "device": request.device.model_copy(update={**device, "architecture": f"sm_90{other}"}),
                "task_source": other,
                "operator": request.operator.model_copy(
                    update={"inputs": [tensor], "parameters": [tensor], "untraceable": other, "operators": [one]}
                ),
                "direction_why": other,
                "history": [one, other],
                "strategies": [scored.model_copy(update={"strategy": strategy, "why": other})],
                "best": best.model_copy(
                    update={"source": other, "profile": best.profile.model_copy(update={"diagnosis": other})}
                ),
            }
        )
        failure = example_failure().model_copy(update={"reason": other, "evidence": one})
        repair = RepairRequest(request=asked, source="x = 1\n", plan=None, failure=failure, tried=[], attempt=1)
        directions = [{"direction": one, "title": one, "score": 0.1, "why": other}]
        rendered = [
            PROMPTS.render("code", code_values(asked)),
            PROMPTS.render("repair", repair_values(repair)),
            PROMPTS.render("repair", no_file_values(asked, other, 1, ending=other)),
            PROMPTS.render("direct", {**DIRECT, "best": other, "history": [one], "directions": directions}),
        ]
        return [without_fences(text) for text in rendered]

    assert outside((first, second)) == outside(("", ""))


def without_fences(text: str) -> str:
    """By the rules of CommonMark: a fence closes with a line of at least as many of its character, and nothing else."""
    kept: list[str] = []
    fence = ""
    for line in text.splitlines():
        found = re.match(r" {0,3}(`{3,}|~{3,})(.*)$", line)
        if fence:
            if found and found[1][0] == fence[0] and len(found[1]) >= len(fence) and not found[2].strip():
                fence = ""
        elif found and not (found[1][0] == "`" and "`" in found[2]):
            fence = found[1]
        else:
            kept.append(line)
    assert not fence
    return "\n".join(kept)


def test_a_long_prompt_is_shortened_and_the_task_and_the_rules_are_not() -> None:
    request = example_request("cuda", first=False)
    scored, best = request.strategies[0], request.best
    assert best is not None
    many = [
        scored.model_copy(
            update={"strategy": scored.strategy.model_copy(update={"id": f"s{n}", "block": "a = b;\n" * 300})}
        )
        for n in range(5)
    ]
    task = "# the task\n" * 1000
    asked = request.model_copy(
        update={
            "task_source": task,
            "strategies": many,
            "history": [f"step {n}: tried" for n in range(9)],
            "best": best.model_copy(update={"source": "int x;\n" * 2500}),
        }
    )
    text = PROMPTS.render("code", code_values(asked))
    assert estimated_tokens(text) <= LIMIT_TOKENS
    assert task.strip() in text
    assert "Policy `own-kernels-only`" in text
    assert "Left out here for room: templates of the fourth strategy and later" in text
    assert "step 8: tried" in text
    roomy = Prompts(limit_tokens=100_000).render("code", code_values(asked))
    assert "Left out" not in roomy
    tiny = Prompts(limit_tokens=10).render("code", code_values(asked))
    assert task.strip() in tiny
    assert "the end of the best kernel's source" in tiny


def test_the_words_on_an_operator_of_thousands_of_tensors_are_shortened() -> None:
    request = example_request("cpp")
    [tensor, *_] = request.operator.inputs
    many = [tensor.model_copy(update={"name": f"weight_{number}"}) for number in range(5000)]
    operator = request.operator.model_copy(update={"parameters": many})
    text = PROMPTS.render("code", code_values(request.model_copy(update={"operator": operator})))
    assert estimated_tokens(text) <= LIMIT_TOKENS
    assert "weight_0: " in text
    assert "Left out here for room" in text


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4000))
def test_less_and_less_is_left_and_each_cut_is_said(limit: int) -> None:
    values = code_values(example_request("cpp", first=False))
    sizes = [len(PROMPTS.render("code", less)) for less in shorter({**values, "graph": "line\n" * limit})]
    for less in shorter(values):
        assert len(str(less["shortened"])) > 2
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("folder", "said"), [("nowhere", "does not exist"), ("mine", "uses nonsense, which repair does not have")]
)
def test_a_prompt_that_does_not_fit_ends_a_run_before_a_model_is_asked(tmp_path: Path, folder: str, said: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "repair.md").write_text("{{ nonsense }}")
    with scripted() as server:
        given = settings_of(tmp_path, server.url, prompts=tmp_path / folder, preflight=True)
        with pytest.raises(SettingsError, match=said):
            optimize(str(TASK), **given)
        assert server.requests == []
    assert not (tmp_path / "run").exists()
