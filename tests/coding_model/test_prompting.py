"""Prompts: built in, a user's, broken ones; and what the model reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.backends.base import Backend, DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.backends.cuda import CudaBackend
from htam_agent.coding.assembly import assemble
from htam_agent.coding.examples import example_request, render_examples
from htam_agent.coding.parsing import fenced_blocks, parse_answer
from htam_agent.coding.prompting import NAMES, Prompts, fenced
from htam_agent.coding.values import code_values, tensor_words
from htam_agent.errors import SettingsError
from htam_agent.evaluation.policy import inspect_source
from htam_agent.operator import TensorInfo


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return render_examples(Prompts())


def test_the_first_prompt_holds_what_a_coder_needs(rendered: dict[str, str]) -> None:
    text = rendered["code-first-cpp"]
    for said in (
        "class Model(nn.Module)", "float32 [1024, 1024]", "aten.relu", "8.389 MB", "a processor", "10 GB/s", "floor",
        "own-kernels-only", "Move bytes in wide pieces.", "the kernel waits for memory", "wide-loads",
        "the tail needs care", "vector_width = 4", "{{ plan.vector_width }} elements at once;",
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
