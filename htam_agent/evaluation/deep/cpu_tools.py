"""The sanitizer's check of a C++ candidate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from htam_agent.backends.cpp import CppBackend
from htam_agent.evaluation.deep import address
from htam_agent.evaluation.deep.finding import Found, fault, not_done, right
from htam_agent.evaluation.deep.records import DeepPrepared, ShapeCase
from htam_agent.evaluation.deep.workplace import Workplace
from htam_agent.verdict import CompileResult

NAME = "address-sanitizer"
BUILD_SECONDS = 120.0
RUN_SECONDS = 180.0


def address_check(
    place: Workplace, compiled: CompileResult, source: str, prepared: DeepPrepared, case: ShapeCase | None
) -> Iterator[Found]:
    """One call of the kernel, built again with checks, on a small shape. `source`: its C++ text.

    An access outside of a tensor is `wrong`, whatever numbers came of it; undefined behaviour that happened to do no
    harm is `quarantined`.
    """
    if not compiled.binary:
        yield not_done(NAME, "the file builds its kernel itself")
        return
    if case is None:
        yield not_done(NAME, "it serves no shape that is small enough")
        return
    compiler = CppBackend().compiler
    libraries = address.library(compiler)
    if not libraries:
        yield not_done(NAME, f"{compiler} has no AddressSanitizer library here (Debian and Ubuntu: libasan8)")
        return
    kernels = place.root / "checked"
    kernels.mkdir()
    name = Path(compiled.binary)
    code = kernels / name.with_suffix(".cpp").name
    code.write_text(source, encoding="utf-8")
    built = place.confined([compiler, *address.FLAGS, code.name, "-o", name.name], kernels, BUILD_SECONDS)
    if not built.ok:
        yield not_done(NAME, f"it does not build with checks ({built.in_words()}): {built.output[:300]}")
        return
    run, outcomes, _ = place.run(
        prepared, [case], RUN_SECONDS, kernels=kernels, environment=address.environment(libraries), keep=False
    )
    errors = address.address_errors(run.output, code.name)
    undefined = address.undefined_behaviour(run.output, code.name)
    if errors:
        yield fault(NAME, "wrong", f"{case.label}: {errors}")
    elif undefined:
        yield fault(NAME, "quarantined", f"undefined behaviour, {case.label}: {undefined}")
    elif any(outcome.ok for outcome in outcomes) and run.ok:
        yield right(NAME, f"nothing outside of its tensors on {case.elements} elements")
    else:
        reason = next((outcome.reason for outcome in outcomes if not outcome.ok), run.output[-300:])
        yield not_done(NAME, f"it does not run under the sanitizer ({run.in_words() if not run.ok else reason})")
