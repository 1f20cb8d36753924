"""From a chat model's answer to a candidate's source.

Answers come as prose with fenced code, with several fences, with the device code in a fence of its own, without any
fence, cut off, or with the model's thinking in front. What is taken is the last complete Python text that defines
`ModelNew`; when there is none, the problem is said in words that the model can act on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from htam_agent.words import Backend, Record

CLASS = "ModelNew"
SOURCE_CONSTANT: dict[Backend, str] = {"cuda": "CUDA_SRC", "cpp": "CPP_SRC"}
DEVICE_LANGUAGES = ("cpp", "c++", "cuda", "cu", "c")

_OPENING = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^`\n]*$")
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_THINKING_END = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
_THINKING_START = re.compile(r"<(?:think|thinking|reasoning)>", re.IGNORECASE)
_STRATEGY = re.compile(r"^#\s*strategy:\s*([\w.-]+)\s*$", re.MULTILINE | re.IGNORECASE)


class Block(Record):
    """One fenced block; `closed` is false when the answer ended inside it."""

    language: str
    text: str
    closed: bool


class Parsed(Record):
    """A candidate's source, or the problem in one sentence for the model."""

    source: str = ""
    strategy: str = ""
    """Id that a comment `# strategy: ID` names, or empty."""
    problem: str = ""


def parse_answer(text: str, backend: Backend, *, cut_off: bool = False) -> Parsed:
    """The candidate in a model's answer. `cut_off`: the server said that the answer reached its length limit."""
    visible, unfinished = without_thinking(text)
    blocks = fenced_blocks(visible)
    sources = [_completed(source, blocks, backend) for source in _python_texts(visible, blocks)]
    complete = [source for source in sources if _defines_class(source)]
    if complete:
        source = complete[-1]
        named = _STRATEGY.search(source) or _STRATEGY.search(visible)
        return Parsed(source=source.strip("\n") + "\n", strategy=named[1] if named else "")
    return Parsed(problem=_problem(visible, blocks, unfinished or cut_off))


def without_thinking(text: str) -> tuple[str, bool]:
    """The answer without thinking tags, and whether it ended while thinking.

    Some servers drop the opening tag, so everything up to a lone closing tag is thinking too.
    """
    rest = _THINKING.sub("", text)
    parts = _THINKING_END.split(rest)
    rest = parts[-1]
    opened = _THINKING_START.search(rest)
    # A tag inside a fenced block is the candidate's own text.
    if opened and not any(opened[0] in block.text for block in fenced_blocks(rest)):
        return rest[: opened.start()], True
    return rest, False


def fenced_blocks(text: str) -> list[Block]:
    """All fenced blocks in order (CommonMark: a fence closes with at least as many of the same character)."""
    blocks: list[Block] = []
    body: list[str] = []
    opening: re.Match[str] | None = None
    for line in text.splitlines():
        if opening is None:
            opening = _OPENING.match(line)
            body = []
        elif _closes(line, opening["fence"]):
            blocks.append(_block(opening, body, closed=True))
            opening = None
        else:
            body.append(line)
    if opening is not None:
        blocks.append(_block(opening, body, closed=False))
    return blocks


def _closes(line: str, fence: str) -> bool:
    text = line.strip()
    return len(text) >= len(fence) and set(text) == {fence[0]}


def _block(opening: re.Match[str], body: list[str], *, closed: bool) -> Block:
    indent = len(opening["indent"])
    # A fence inside a list is indented, and its lines with it.
    lines = [line[indent:] if not line[:indent].strip() else line for line in body]
    return Block(language=opening["language"].lower(), text="\n".join(lines), closed=closed)


def _python_texts(visible: str, blocks: list[Block]) -> Iterator[str]:
    if not blocks:
        yield visible
    for block in blocks:
        if block.language not in DEVICE_LANGUAGES:
            yield block.text


def _completed(source: str, blocks: list[Block], backend: Backend) -> str:
    """With the device code put in from its own fence, when the source uses the constant and does not define it."""
    constant = SOURCE_CONSTANT[backend]
    device = [block for block in blocks if block.language in DEVICE_LANGUAGES and block.closed]
    if len(device) != 1 or CLASS not in source or constant not in source or _assigns(source, constant):
        return source
    return _insert_after_imports(source, f"{constant} = {literal(device[0].text)}")


def device_source(source: str) -> str:
    """The text of the constant CUDA_SRC or CPP_SRC of a candidate; empty where there is none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        named = any(isinstance(target, ast.Name) and target.id in SOURCE_CONSTANT.values() for target in targets)
        if named and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return ""


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
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
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
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.ClassDef) and node.name == CLASS for node in tree.body)


def _problem(visible: str, blocks: list[Block], cut_off: bool) -> str:
    if cut_off or (blocks and not blocks[-1].closed):
        return "The answer was cut off before the file was complete; send a shorter one."
    if not visible.strip():
        return "The answer was empty."
    for text in reversed(list(_python_texts(visible, blocks))):
        if CLASS not in text:
            continue
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f" at line {line}" if line else ""
            return f"The file does not parse as Python: {getattr(error, 'msg', error)}{where}."
        return f"`{CLASS}` is not a class at the top level of the file."
    return f"The answer holds no Python file that defines `{CLASS}`."
