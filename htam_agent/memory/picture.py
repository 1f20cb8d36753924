"""`htam memory graph --out`: the Hierarchical Transition Graph as an SVG or PNG, drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from htam_agent.errors import UsageError
from htam_agent.memory.files import unwritable
from htam_agent.memory.graph_facts import GraphFacts, Measured, StrategyFacts, TransitionFacts
from htam_agent.memory.graph_layout import CENTRE, HEIGHT, WIDTH, Layout, Point, laid_out
from htam_agent.memory.model import START
from htam_agent.memory.view import mermaid
from htam_agent.plain_text import plain_line

Colour: TypeAlias = str | tuple[float, float, float, float]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
DOTS_PER_INCH = 110
INK, QUIET, PAPER, RIM = "#1f2933", "#5f6b7a", "#ffffff", "#9aa5b1"
UNMEASURED = "#c3ccd6"
COLOURS = ["#b3261e", "#e3b7ad", "#cfd4da", "#9fcf9a", "#1a7f37"]
"""From a loss over no change (the middle) to a gain; grey in the middle, since yellow is lost on white."""

SHARES = (-0.2, 0.8)
"""Ends of the colour scale: a share of the gap below or above them looks like the end."""

PANEL = 11.45
"""Where the panel with legend and numbers begins, in inches."""

EXPECTED, PRIOR, MEASURED = PANEL + 3.05, PANEL + 3.5, PANEL + 4.3
"""Right ends of its columns of numbers."""

NOTE = (
    "A prior is the share of the remaining gap to the floor that a step is\nexpected to close before anything is "
    "measured; expected is the prior\naveraged with the measured steps (their number in brackets).\nThe numbers round "
    "the start are those of a first step."
)

TAG_DISTANCE = 1.0
"""From the middle to the numbers of the first steps, in inches: a ring in which none touches its neighbour."""

LISTED = 14
"""Transitions that the panel names, strongest first."""


def draw(facts: GraphFacts, path: Path) -> None:
    """Writes the picture to `path`; its ending says the format: .svg, .png, or .mmd, which is text for Mermaid.

    Raises UsageError for another ending and when matplotlib is not installed, StoreError when it cannot be written.
    """
    if path.suffix.lower() == ".mmd":
        _written(path, lambda: path.write_text(mermaid(facts), encoding="utf-8"))
        return
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"A picture {str(path)!r} cannot be drawn.", "Let it end in .svg, .png or .mmd (Mermaid).", "memory-picture"
        )
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            f"matplotlib, which draws pictures, cannot be imported: {error}.",
            "Install the extra: pip install 'htam_agent[plot]'; or give a file ending in .mmd, for Mermaid.",
            "extra-missing",
        ) from error
    # The identifiers in an SVG are hashes; with a fixed salt the same graph gives the same file. Titles may come from
    # others' packs: a dollar sign in one is no formula.
    with mpl.rc_context({"svg.hashsalt": "htam", "font.family": "DejaVu Sans", "text.parse_math": False}):
        figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=PAPER)
        _Drawing(figure, facts).draw()
        if path.suffix.lower() == ".svg":
            _written(path, lambda: figure.savefig(path, format="svg", metadata={"Date": None}))
        else:
            _written(path, lambda: figure.savefig(path, format="png", dpi=DOTS_PER_INCH))


def _written(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise unwritable("picture", path, error) from error


class _Drawing:
    """One picture being drawn; the axes' unit is the inch."""

    def __init__(self, figure: Figure, facts: GraphFacts) -> None:
        from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm

        self.facts = facts
        self.layout: Layout = laid_out(facts)
        self.titles = {one.id: plain_line(one.title) for one in facts.directions} | {START: "start"}
        self.axes: Axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.axes.set_xlim(0, WIDTH)
        self.axes.set_ylim(0, HEIGHT)
        self.axes.set_axis_off()
        self.colours: Colormap = LinearSegmentedColormap.from_list("share", COLOURS)
        self.scale = TwoSlopeNorm(0.0, *SHARES)

    def draw(self) -> None:
        # Weak edges first, so that the strong ones lie on top.
        for edge in sorted(self.facts.transitions, key=lambda one: one.expected):
            if edge.source in self.layout.centres and edge.target in self.layout.centres:
                self._edge(edge)
        for strategy in self.facts.strategies:
            if strategy.id in self.layout.satellites:
                self._satellite(strategy, self.layout.satellites[strategy.id])
        self._nodes()
        self._heading()
        self._legend()
        self._strongest()

    def _colour(self, measured: Measured) -> Colour:
        if measured.share is None:
            return UNMEASURED
        return self.colours(float(self.scale(min(max(measured.share, SHARES[0]), SHARES[1]))))

    def _edge(self, edge: TransitionFacts) -> None:
        from matplotlib.patches import FancyArrowPatch

        weight = max(edge.expected, 0.02)
        strength = min(weight / 0.4, 1.0)
        measured = edge.measured.share is not None
        first = edge.source == START
        again = edge.source == edge.target
        start, end = self._loop(edge.source) if again else self._ends(edge.source, edge.target)
        self.axes.add_patch(
            FancyArrowPatch(
                start,
                end,
                connectionstyle="arc3,rad=-1.4" if again else "arc3,rad=0" if first else "arc3,rad=0.16",
                arrowstyle="-|>",
                mutation_scale=7 + 9 * strength,
                linewidth=0.5 + 4.5 * strength**1.5,
                color=self._colour(edge.measured) if measured else ("#7b8794" if first else "#8fa3bf"),
                alpha=0.95 if measured else 0.30 + 0.55 * strength,
                linestyle="-" if edge.prior is not None else (0, (3, 2)),
                zorder=2 if measured else 1,
            )
        )
        if first and end != start:
            length = math.dist(CENTRE, end)
            place = tuple(c + TAG_DISTANCE * (e - c) / length for c, e in zip(CENTRE, end, strict=True))
            self._tag((place[0], place[1]), f"{edge.expected:.2f}")

    def _ends(self, source: str, target: str) -> tuple[Point, Point]:
        """On the rims of the two nodes, where the arc leaves and arrives."""
        (x0, y0), (x1, y1) = self.layout.centres[source], self.layout.centres[target]
        bend = 0.0 if source == START else math.atan(0.32)
        angle = math.atan2(y1 - y0, x1 - x0)
        leave, arrive = angle - bend, angle + math.pi + bend
        r0, r1 = self.layout.radii[source] + 0.02, self.layout.radii[target] + 0.04
        return (
            (x0 + r0 * math.cos(leave), y0 + r0 * math.sin(leave)),
            (x1 + r1 * math.cos(arrive), y1 + r1 * math.sin(arrive)),
        )

    def _loop(self, name: str) -> tuple[Point, Point]:
        """Two points on the rim that looks to the middle: the same direction twice in a row."""
        (x, y), radius = self.layout.centres[name], self.layout.radii[name] + 0.02
        inward = math.atan2(CENTRE[1] - y, CENTRE[0] - x)
        ends = (inward - 0.28, inward + 0.28)
        first, second = ((x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in ends)
        return first, second

    def _tag(self, place: Point, text: str) -> None:
        box = {"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.9}
        self.axes.text(*place, text, fontsize=7.5, color=QUIET, ha="center", va="center", bbox=box, zorder=3)

    def _satellite(self, strategy: StrategyFacts, place: Point) -> None:
        marker = "o" if strategy.backend == "cpp" else "s"
        size = 38 if strategy.backend == "cpp" else 32
        self.axes.scatter(
            [place[0]], [place[1]], s=size, marker=marker, zorder=4, linewidths=0.7,
            c=[self._colour(strategy.measured)], edgecolors=INK if strategy.measured.steps else RIM,
        )  # fmt: skip

    def _nodes(self) -> None:
        from matplotlib.patches import Circle

        for one in self.facts.directions:
            centre, radius = self.layout.centres[one.id], self.layout.radii[one.id]
            fill = self._colour(one.measured) if one.measured.steps else "#e8eef5"
            self.axes.add_patch(Circle(centre, radius, facecolor=fill, edgecolor=INK, linewidth=1.3, zorder=5))
            title = (
                self.titles[one.id].replace(" ", "\n").replace("Numerical\nformulation", "Numerical\nformu-\nlation")
            )
            title = title.replace("Synchronization", "Synchro-\nnization").replace("throughput", "through-\nput")
            steps = f"\n{one.measured.steps} steps" if one.measured.steps else ""
            self.axes.text(*centre, title + steps, fontsize=8.2, color=INK, ha="center", va="center", zorder=6)
        self.axes.add_patch(
            Circle(CENTRE, self.layout.radii[START], facecolor=INK, edgecolor=INK, linewidth=1.3, zorder=5)
        )
        self.axes.text(*CENTRE, "start", fontsize=9.5, color=PAPER, ha="center", va="center", zorder=6)

    def _heading(self) -> None:
        facts = self.facts
        self._text(0.4, HEIGHT - 0.45, "The memory as a Hierarchical Transition Graph", size=17, weight="bold")
        chosen = [word for word in (facts.backend, facts.device) if word]
        told = f"{len(facts.directions)} directions, {len(facts.strategies)} strategies, " + (
            f"{len(facts.transitions)} transitions, {facts.experiences} measured steps"
        )
        self._text(0.4, HEIGHT - 0.8, told + (f"  (only {', '.join(chosen)})" if chosen else ""), colour=QUIET)

    def _legend(self) -> None:
        top = HEIGHT - 0.45
        self._text(PANEL, top, "How to read it", size=12, weight="bold")
        self._circle_sample((PANEL + 0.17, top - 0.42), "#e8eef5")
        self._text(PANEL + 0.45, top - 0.42, "direction: an optimisation intent; larger = used more often")
        self.axes.scatter([PANEL + 0.1], [top - 0.77], s=38, c=UNMEASURED, edgecolors=RIM, linewidths=0.7)
        self.axes.scatter([PANEL + 0.26], [top - 0.77], s=32, c=UNMEASURED, edgecolors=RIM, linewidths=0.7, marker="s")
        self._text(PANEL + 0.45, top - 0.77, "its strategies: circle for C++, square for CUDA")
        self._arrow_sample(top - 1.12, 0.36, "#8fa3bf")
        self._text(PANEL + 0.45, top - 1.12, "transition: wider = more of the gap expected")
        self._arrow_sample(top - 1.47, 0.36, self.colours(0.9))
        self._text(PANEL + 0.45, top - 1.47, "coloured: measured; dashed: nobody had described it")
        self._colour_bar(top - 2.15)

    def _circle_sample(self, centre: Point, colour: Colour) -> None:
        from matplotlib.patches import Circle

        self.axes.add_patch(Circle(centre, 0.12, facecolor=colour, edgecolor=INK, linewidth=1.2))

    def _arrow_sample(self, y: float, length: float, colour: Colour) -> None:
        from matplotlib.patches import FancyArrowPatch

        self.axes.add_patch(
            FancyArrowPatch(
                (PANEL - 0.02, y), (PANEL + length, y), arrowstyle="-|>", mutation_scale=12, linewidth=2.4, color=colour
            )
        )

    def _colour_bar(self, y: float) -> None:
        from matplotlib.patches import Rectangle

        count, width = 60, 3.6
        for place in range(count):
            share = SHARES[0] + (SHARES[1] - SHARES[0]) * (place + 0.5) / count
            left = PANEL + width * place / count
            self.axes.add_patch(
                Rectangle((left, y), width / count * 1.05, 0.16, color=self.colours(float(self.scale(share))), lw=0)
            )
        for share in (SHARES[0], 0.0, 0.4, SHARES[1]):
            x = PANEL + width * (share - SHARES[0]) / (SHARES[1] - SHARES[0])
            self._text(x, y - 0.14, f"{share:+.0%}" if share else "0", size=7.5, colour=QUIET, align="center")
        self._text(PANEL, y + 0.32, "share of the remaining gap to the floor that a step closed", colour=QUIET)

    def _strongest(self) -> None:
        y = HEIGHT - 3.45
        edges = [edge for edge in self.facts.transitions if edge.source in self.titles and edge.target in self.titles]
        edges.sort(key=lambda one: (-one.expected, one.source, one.target))
        self._text(PANEL, y, "Strongest transitions", size=12, weight="bold")
        for x, word in ((EXPECTED, "expected"), (PRIOR, "prior"), (MEASURED, "measured")):
            self._text(x, y - 0.3, word, size=7.5, colour=QUIET, align="right")
        for place, edge in enumerate(edges[:LISTED]):
            row = y - 0.55 - 0.27 * place
            self._text(
                PANEL, row, f"{self.titles[edge.source]} \N{RIGHTWARDS ARROW} {self.titles[edge.target]}", size=8
            )
            self._text(EXPECTED, row, f"{edge.expected:.2f}", align="right", size=8)
            self._text(PRIOR, row, "" if edge.prior is None else f"{edge.prior:.2f}", align="right", size=8)
            if edge.measured.share is not None:
                told = f"{edge.measured.share:+.2f} ({edge.measured.steps})"
                self._text(MEASURED, row, told, align="right", size=8)
        self._text(PANEL, y - 0.65 - 0.27 * min(LISTED, len(edges)), NOTE, colour=QUIET, size=8, top=True)

    def _text(
        self, x: float, y: float, text: str, *, size: float = 8.6, weight: str = "normal", colour: str = INK,
        align: str = "left", top: bool = False,
    ) -> None:  # fmt: skip
        self.axes.text(
            x, y, text, fontsize=size, fontweight=weight, color=colour, ha=align, va="top" if top else "center",
            linespacing=1.35,
        )  # fmt: skip
