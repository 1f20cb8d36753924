"""From a chat model's answers to a candidate's source.

Answers come as prose with fenced code, with several fences, with the device code in a fence of its own, without any
fence, cut off, with the model's thinking in front, as a diff of the file before or only its device code, or as JSON
that holds the file. What is taken is the last complete Python text that defines `ModelNew`; when there is none, the
problem is said in words that the model can act on. A file that builds itself (torch's load_inline) is taken as it is.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from htam_agent.coding.fences import Block, fenced_blocks, without_thinking
from htam_agent.coding.patching import Misfit, apply_diff, looks_like_diff
from htam_agent.syntax import parse
from htam_agent.words import Backend, Record

CLASS = "ModelNew"
SOURCE_CONSTANT: dict[Backend, str] = {"cuda": "CUDA_SRC", "cpp": "CPP_SRC"}
DEVICE_LANGUAGES = ("cpp", "c++", "cuda", "cu", "c")
ENDING_LINES = 12
"""Lines of a cut-off answer that the model is shown again, to go on behind them."""
ENDING_CHARACTERS = 4000
"""Of them at most: an answer that loops may be one line."""
REPEATED = 12
"""Characters that a continuation must repeat of what stood before, in the middle of a line, to be seen as repeating."""
MOST_CHARACTERS = 400_000
"""Of an answer besides its thinking. What is longer loops, or is no answer to the question."""
MOST_BLOCKS = 64
"""Fenced blocks of an answer."""
MOST_FILE = 100_000
"""Characters of a candidate: it is sent back whole when it is to be mended, and must fit a model's context."""

_STRATEGY = re.compile(r"^#\s*strategy:\s*([\w.-]+)\s*$", re.MULTILINE | re.IGNORECASE)


class Parsed(Record):
    """A candidate's source, or the problem in one sentence for the model."""

    source: str = ""
    strategy: str = ""
    """Id that a comment `# strategy: ID` names, or empty."""
    problem: str = ""
    note: str = ""
    """How the source was made where it was not sent whole: "a diff was applied to the file before"."""
    ending: str = ""
    """With a problem: the last lines of a file that was cut off, behind which the model can go on."""


def parse_answers(answers: Sequence[tuple[str, bool]], backend: Backend, base: str = "") -> Parsed:
    """The candidate in a conversation's answers, each with whether the server said that it reached its length limit.

    An answer that was cut off is gone on with by the next one, unless that holds a whole file itself. `base`: the file
    that the model was shown (its best or its failed one), for answers that say only what changes in it.
    """
    text = ""
    parsed = Parsed(problem="There was no answer.")
    for answer, was_cut_off in answers:
        # What goes on with a file that was cut off may look like its device code alone: only a file that is whole
        # without the one before is taken for an answer of its own.
        goes_on = parsed.ending and "import torch" not in parse_answer(answer, backend, cut_off=was_cut_off).source
        text = joined(text, answer) if goes_on else answer
        parsed = parse_answer(text, backend, cut_off=was_cut_off, base=base)
    return parsed


def parse_answer(text: str, backend: Backend, *, cut_off: bool = False, base: str = "") -> Parsed:
    """The candidate in one answer. `cut_off`: the server said that it reached its length limit."""
    visible, unfinished = without_thinking(_unwrapped(text))
    blocks = fenced_blocks(visible)
    problem = _too_much(visible, blocks)
    if problem:
        return Parsed(problem=problem)
    parsed = _parsed(visible, blocks, backend, base, cut_off=cut_off, unfinished=unfinished)
    if len(parsed.source) > MOST_FILE:
        return Parsed(problem=f"The file has {len(parsed.source)} characters; send one of at most {MOST_FILE}.")
    return parsed


def _too_much(visible: str, blocks: list[Block]) -> str:
    if len(visible) > MOST_CHARACTERS:
        return f"The answer has {len(visible)} characters; send the file alone, of at most {MOST_FILE}."
    if len(blocks) > MOST_BLOCKS:
        return f"The answer has {len(blocks)} fenced blocks; send the complete file alone, in one."
    return ""


def _parsed(
    visible: str, blocks: list[Block], backend: Backend, base: str, *, cut_off: bool, unfinished: bool
) -> Parsed:
    # Where the server says that it ran out, what stands in an open fence may parse and lack its end all the same.
    ended = blocks[:-1] if cut_off and blocks and not blocks[-1].closed else blocks
    texts = _python_texts(visible, ended) if ended or not blocks else iter(())
    sources = [_completed(source, blocks, backend, base) for source in texts]
    complete = [(source, note) for source, note in sources if _defines_class(source)]
    if complete:
        source, note = complete[-1]
        named = _STRATEGY.search(source) or _STRATEGY.search(visible)
        return Parsed(source=source.strip("\n") + "\n", strategy=named[1] if named else "", note=note)
    cut = unfinished or cut_off or bool(blocks and not blocks[-1].closed)
    problem = ""
    if base and not cut:
        try:
            changed = _changed(blocks, base, backend)
        except Misfit as misfit:
            problem = str(misfit)
        else:
            if changed is not None:
                named = _STRATEGY.search(visible)
                return Parsed(source=changed[0], strategy=named[1] if named else "", note=changed[1])
    return Parsed(problem=problem or _problem(visible, blocks, cut), ending=_ending(visible, blocks) if cut else "")


def joined(before: str, after: str) -> str:
    """A cut-off answer and the answer that goes on behind it, as one text.

    The continuation is the longest fenced block of `after`, or all of it; what it repeats of `before` is left out.
    """
    start, _ = without_thinking(_unwrapped(before))
    rest, _ = without_thinking(_unwrapped(after))
    blocks = fenced_blocks(rest)
    body = max((block.text for block in blocks), key=len) if blocks and rest.lstrip().startswith(("`", "~")) else rest
    if blocks and body is rest:
        opening = next((block for block in blocks if block.language not in ("", "text")), None)
        body = opening.text if opening is not None else rest
    body = _without_repetition(start, body)
    glue = "\n" if start.rstrip(" ").endswith((";", "{", "}", ":", ">")) and not body.startswith("\n") else ""
    return f"{start}{glue}{body}"


def _without_repetition(before: str, body: str) -> str:
    """The body without what it says again of the end of `before`: a part of a line at least, or its beginning."""
    for length in range(min(len(before), len(body), 4000), 0, -1):
        if before.endswith(body[:length]):
            at_line = length == len(before) or before[-length - 1] == "\n"
            if (at_line and body[:length].strip()) or length >= REPEATED:
                return body[length:]
    return body


def _unwrapped(text: str) -> str:
    """Without a byte order mark; of an answer that is one JSON object, the string in it that holds the file."""
    text = text.removeprefix("\ufeff")
    if not text.lstrip().startswith("{") or CLASS not in text:
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    values = found.values() if isinstance(found, dict) else []
    return next((value for value in values if isinstance(value, str) and f"class {CLASS}" in value), text)


def _python_texts(visible: str, blocks: list[Block]) -> Iterator[str]:
    if not blocks:
        yield visible
    for block in blocks:
        if block.language not in DEVICE_LANGUAGES:
            yield block.text


def _completed(source: str, blocks: list[Block], backend: Backend, base: str) -> tuple[str, str]:
    """The source, with the device code put in from elsewhere when it uses the constant and does not define it: from
    another block, or from the file before; and a note on it."""
    constant = SOURCE_CONSTANT[backend]
    if CLASS not in source or constant not in source or _assigns(source, constant):
        return source, ""
    device = [block for block in blocks if block.language in DEVICE_LANGUAGES and block.closed]
    if len(device) == 1:
        return _insert_after_imports(source, f"{constant} = {literal(device[0].text)}"), ""
    others = [device_source(block.text) for block in blocks if block.text != source]
    found = [text for text in others if text]
    if len(found) == 1:
        return _insert_after_imports(source, f"{constant} = {literal(found[0])}"), ""
    before = device_source(base)
    if before and not device and not found:
        text = _insert_after_imports(source, f"{constant} = {literal(before)}")
        return text, "the device code is that of the file before"
    return source, ""


def _changed(blocks: list[Block], base: str, backend: Backend) -> tuple[str, str] | None:
    """The file before with what the blocks change in it, and a note; None where they hold no such thing.

    Raises Misfit when a diff does not fit.
    """
    diffs = [block.text for block in blocks if looks_like_diff(block.language, block.text)]
    if diffs:
        source = base
        for diff in diffs:
            source = apply_diff(source, diff)
        if not _defines_class(source):
            raise Misfit("With the diff applied the file does not parse as Python: send the complete file")
        return source, "a diff was applied to the file before"
    device = [block.text for block in blocks if block.language in DEVICE_LANGUAGES and block.closed]
    device += [text for block in blocks if (text := device_source(block.text))]
    whole = [text for text in device if 'extern "C"' in text]
    if len(whole) != 1 or not device_source(base):
        return None
    return with_device_source(base, backend, whole[0]), "only the device code was sent; the rest is the file before"


def with_device_source(source: str, backend: Backend, device: str) -> str:
    """The candidate with another text in its constant."""
    node = _device_node(parse(source))
    assert node is not None, "asked for files that have one"
    lines = source.splitlines()
    assigned = f"{SOURCE_CONSTANT[backend]} = {literal(device)}"
    return "\n".join([*lines[: node.lineno - 1], assigned, *lines[node.end_lineno :]]) + "\n"


@lru_cache(maxsize=2 * MOST_BLOCKS)
def device_source(source: str) -> str:
    """The text of the constant CUDA_SRC or CPP_SRC of a candidate; empty where there is none. Kept, since every block
    of an answer is asked for it once for each other block."""
    if not any(name in source for name in SOURCE_CONSTANT.values()):
        return ""
    try:
        node = _device_node(parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    value = node.value if node is not None else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _device_node(tree: ast.Module) -> ast.Assign | ast.AnnAssign | None:
    """The statement that assigns the device code as a plain string."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        named = any(isinstance(target, ast.Name) and target.id in SOURCE_CONSTANT.values() for target in targets)
        if named and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return node
    return None


def literal(text: str) -> str:
    """A Python string literal of several lines, raw where that is possible."""
    # Python's reader turns a carriage return into a line feed, and refuses a null byte.
    plain = not {"\r", "\0"} & set(text)
    for quotes in ("'''", '"""'):
        if plain and quotes not in text and not text.endswith(("\\", quotes[0])):
            return f"r{quotes}\n{text}\n{quotes}"
    return repr(text)


def _insert_after_imports(source: str, statement: str) -> str:
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    last = 0
    for index, node in enumerate(tree.body):
        docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            last = node.end_lineno or last
    lines = source.splitlines()
    return "\n".join([*lines[:last], "", statement, "", *lines[last:]])


def _assigns(source: str, name: str) -> bool:
    return re.search(rf"^{name}\s*(:[^=\n]*)?=", source, re.MULTILINE) is not None


def _defines_class(source: str) -> bool:
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.ClassDef) and node.name == CLASS for node in tree.body)


def _ending(visible: str, blocks: list[Block]) -> str:
    """The last lines of a file that was begun and not ended; empty where none was begun."""
    text = blocks[-1].text if blocks and not blocks[-1].closed else "" if blocks else visible
    ending = "\n".join(text.splitlines()[-ENDING_LINES:]) if "import torch" in text else ""
    return ending[-ENDING_CHARACTERS:]


def _problem(visible: str, blocks: list[Block], cut_off: bool) -> str:
    if cut_off:
        return "The answer was cut off before the file was complete; send a shorter one."
    if not visible.strip():
        return "The answer was empty."
    for text in reversed(list(_python_texts(visible, blocks))):
        if CLASS not in text:
            continue
        try:
            parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f" at line {line}" if line else ""
            return f"The file does not parse as Python: {getattr(error, 'msg', error)}{where}."
        return f"`{CLASS}` is not a class at the top level of the file."
    return f"The answer holds no Python file that defines `{CLASS}`."
