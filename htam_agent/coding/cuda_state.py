"""What a pass gathers, as C++ text: the struct of a thread's partial results, and how elements enter and results leave.

A struct holds one number for each reduction, two for a running softmax, four for running moments (the functions
running_* come from the strategies' blocks). `merge` combines two threads' structs, whoever they are.
"""

from __future__ import annotations

from htam_agent.coding.cuda_expressions import argument
from htam_agent.coding.cuda_layout import Layout, pair_of
from htam_agent.coding.program import Pass, Value
from htam_agent.coding.schedule import OnlinePair

COMBINE = {
    "reduce_sum": ("real(0)", "{a} + {b}"),
    "reduce_max": ("real(-infinity())", "op_maximum({a}, {b})"),
    "reduce_min": ("real(infinity())", "op_minimum({a}, {b})"),
}
"""Neutral element and combination of each reduction."""
ONLINE = {
    "softmax": ["real(-infinity())", "real(0)"],
    "moments": ["real(0)", "real(0)", "real(0)", "real(0)"],
}
"""Empty running statistics: (maximum, sum), and (shift, sum, squares, count)."""


class StateText:
    """The state of pass `index`."""

    def __init__(self, layout: Layout, index: int) -> None:
        self._layout = layout
        self._walk: Pass = layout.walks[index]
        self._index = index
        self._name = f"state_{index}"

    def pairs(self) -> list[OnlinePair]:
        """The running statistics that this pass gathers."""
        names = {value.name for value in self._walk.reductions}
        return [pair for pair in self._layout.pairs if pair.first.name in names]

    def gather_lines(self) -> list[str]:
        """One element enters the state."""
        lines = []
        word = 0
        for value in self._walk.reductions:
            pair = pair_of(value, self._layout.pairs)
            if pair is None:
                term = argument(value.arguments[0], self._layout.double)
                combined = COMBINE[value.op][1].format(a=f"{self._name}.word[{word}]", b=term)
                lines.append(f"{self._name}.word[{word}] = {combined};")
                word += 1
            elif pair.first.name == value.name:
                if pair.kind == "softmax":
                    lines.append(f"seen_{pair.argument}[j] = {pair.argument};")
                    word += 2
                else:
                    cells = ", ".join(f"{self._name}.word[{word + k}]" for k in range(4))
                    lines.append(f"running_moments_add({cells}, {pair.argument});")
                    word += 4
        return lines

    def softmax_line(self, first: Value, name: str) -> str:
        """One pack enters a running softmax."""
        word = self._words()[first.name]
        cells = f"{self._name}.word[{word}], {self._name}.word[{word + 1}]"
        return f"running_softmax_add({cells}, seen_{name});"

    def _words(self) -> dict[str, int]:
        """First word of each reduction or pair (under the name of its first reduction)."""
        places: dict[str, int] = {}
        word = 0
        for value in self._walk.reductions:
            pair = pair_of(value, self._layout.pairs)
            if pair is None:
                places[value.name] = word
                word += 1
            elif pair.first.name == value.name:
                places[value.name] = word
                word += 2 if pair.kind == "softmax" else 4
        return places

    def state(self) -> str:
        """The struct of what the pass gathers, empty when it gathers nothing."""
        if not self._walk.reductions:
            return ""
        clear: list[str] = []
        merge: list[str] = []
        for value in self._walk.reductions:
            pair = pair_of(value, self._layout.pairs)
            word = len(clear)
            if pair is None:
                neutral, combined = COMBINE[value.op]
                clear.append(neutral)
                merge.append(f"word[{word}] = {combined.format(a=f'word[{word}]', b=f'other.word[{word}]')};")
            elif pair.first.name == value.name:
                clear += ONLINE[pair.kind]
                cells = ", ".join(f"word[{word + k}]" for k in range(len(ONLINE[pair.kind])))
                others = ", ".join(f"other.word[{word + k}]" for k in range(len(ONLINE[pair.kind])))
                merge.append(f"running_{pair.kind}_merge({cells}, {others});")
        return "\n".join(
            [
                f"struct State{self._index} {{",
                f"    static constexpr int WORDS = {len(clear)};",
                f"    real word[{len(clear)}];",
                "    __device__ __forceinline__ void clear() {",
                *(f"        word[{k}] = {item};" for k, item in enumerate(clear)),
                "    }",
                f"    __device__ __forceinline__ void merge(const State{self._index}& other) {{",
                *(f"        {line}" for line in merge),
                "    }",
                "};",
            ]
        )

    def after(self) -> list[str]:
        """The reductions as row values, from the combined state."""
        lines = []
        words = self._words()
        for value in self._walk.reductions:
            pair = pair_of(value, self._layout.pairs)
            word = words[pair.first.name if pair else value.name]
            cell = f"{self._name}.word"
            if pair is None or (pair.kind == "softmax" and pair.first.name == value.name):
                text = f"{cell}[{word}]"
            elif pair.kind == "softmax":
                text = f"{cell}[{word + 1}]"
            elif pair.first.name == value.name:
                text = f"running_moments_sum({cell}[{word}], {cell}[{word + 1}], {cell}[{word + 3}])"
            else:
                text = f"running_moments_squares({cell}[{word + 1}], {cell}[{word + 2}], {cell}[{word + 3}])"
            lines.append(f"[[maybe_unused]] const real {value.name} = {text};")
        return lines
