"""The one place that names the version: the build, `htam --version` and every record read it from here."""

from __future__ import annotations

__version__ = "0.1.0"
