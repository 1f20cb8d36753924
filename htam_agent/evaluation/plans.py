"""Which trials a candidate goes through, for which protocols, under which precision flags."""

from __future__ import annotations

from collections.abc import Sequence

from htam_agent.evaluation.families import FAMILIES
from htam_agent.evaluation.messages import Family, Regime
from htam_agent.words import Protocol, Record

PROTOCOLS: tuple[Protocol, ...] = ("kernelbench", "verified", "verified-fair", "strict")
KERNELBENCH_TRIALS = 5
VERIFIED_FACTORS = (3.0, 0.01, -1.0)
"""Factors on floating inputs besides 1 (KernelBench-Verified)."""
DECLARED: tuple[Protocol, ...] = ("strict", "verified-fair")
"""Protocols whose both sides run at the declared precision."""

CHANGED_WITH: tuple[Family, ...] = ("extreme-rows", "sign")
"""Families of the trials with other parameters: clipping of large values shows where a weight is negative too."""
CHANGED = "parameters changed"


class TrialPlan(Record):
    """One trial: what is done to the inputs, other parameters or not, under which flags, and for which protocols."""

    label: str
    factor: float = 1.0
    family: Family = ""
    blend: bool = False
    changed_parameters: bool = False
    regime: Regime = "declared"
    protocols: tuple[Protocol, ...]


def plan_trials(protocols: Sequence[Protocol], has_parameters: bool, *, flags_matter: bool = False) -> list[TrialPlan]:
    """The trials of these protocols, those at the declared precision first.

    - `kernelbench`: five of the task's own values.
    - `verified`, `verified-fair`: its own values times 1, 3, 0.01 and -1; and the other plain ones of `kernelbench`,
      where that is asked for and runs under the same flags.
    - `strict`: two of its own values at one address; five drawn families (families.py); extreme rows and random
      signs with parameters that are changed in place after construction; and those of `verified-fair`, where it is
      asked for. What takes the place of dropped ones: `in_place_of`.

    `kernelbench` and `verified` run under the flags as the file leaves them, the other two under the declared
    precision's. Only where no flag can matter (`flags_matter` false) is a trial shared between the two kinds.
    """
    asked = tuple(dict.fromkeys(protocols))
    literal = tuple(name for name in asked if name not in DECLARED)
    fair = tuple(name for name in asked if name in DECLARED)
    if not flags_matter:
        return _plan(asked, "declared", has_parameters)
    return [*_plan(fair, "declared", has_parameters), *_plan(literal, "defaults", has_parameters)]


def _plan(asked: tuple[Protocol, ...], regime: Regime, has_parameters: bool) -> list[TrialPlan]:
    if not asked:
        return []

    def among(*names: Protocol) -> tuple[Protocol, ...]:
        return tuple(name for name in asked if name in names)

    suffix = "" if regime == "declared" else ", flags as the file leaves them"
    verified = among("verified", "verified-fair")
    literal: tuple[Protocol, ...] = ("kernelbench", *verified) if "kernelbench" in asked else ()
    plain = [TrialPlan(label=f"x1 #1{suffix}", regime=regime, protocols=asked)]
    if "strict" in asked or "kernelbench" in asked:
        plain += [
            TrialPlan(
                label=f"x1 #{number}{suffix}",
                regime=regime,
                protocols=among(*literal, *(("strict",) if number == 2 else ())),
            )
            for number in range(2, (KERNELBENCH_TRIALS if "kernelbench" in asked else 2) + 1)
        ]
    families = [TrialPlan(label=family, family=family, protocols=("strict",)) for family in FAMILIES]
    changed = [
        TrialPlan(label=f"{family}, {CHANGED}", family=family, changed_parameters=True, protocols=("strict",))
        for family in CHANGED_WITH
    ]
    factors = [
        TrialPlan(label=f"x{factor:g}{suffix}", factor=factor, regime=regime, protocols=among("strict", *verified))
        for factor in VERIFIED_FACTORS
    ]
    own = [*(changed if has_parameters else []), *families] if "strict" in asked else []
    # Two plain ones first: they lie at one address. Then the families, by which most of what is wrong is found.
    return [*plain[:2], *own, *(factors if verified else []), *plain[2:]]


def regime_of(protocol: Protocol) -> Regime:
    """The flags under which a protocol judges, and under which a candidate is timed where it decides."""
    return "declared" if protocol in DECLARED else "defaults"


def in_place_of(dropped: Sequence[str]) -> list[TrialPlan]:
    """Trials instead of those that a task does not bear, by the labels with which what they say begins: values inside
    the domain of its own, with other parameters where those were to be seen."""
    plans = []
    if all(any(text.startswith(f"{family}, {CHANGED}") for text in dropped) for family in CHANGED_WITH):
        plans.append(TrialPlan(label=CHANGED, changed_parameters=True, protocols=("strict",)))
    if any(text.startswith(FAMILIES) for text in dropped):
        plans.append(TrialPlan(label="blend", blend=True, protocols=("strict",)))
    return plans
