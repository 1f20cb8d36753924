"""Logs go to stderr, as lines for people or as JSON; stdout belongs to results alone."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Literal, TextIO

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]


class _StderrHandler(logging.Handler):
    """Writes to whatever `sys.stderr` is at that time: a test or a notebook may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self.handleError(record)


def set_up_logging(level: Level, form: Format) -> None:
    """Send the records of structlog and of the standard library to stderr. May be called again; the last call counts.

    Records of other packages below WARNING are dropped: a library's chatter is no news of ours.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        if form == "json"
        else [structlog.dev.ConsoleRenderer(colors=_takes_colours(sys.stderr))]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    for old in [known for known in root.handlers if isinstance(known, _StderrHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


def _takes_colours(stream: TextIO) -> bool:
    return stream.isatty()
