"""`python -m htam_agent` is `htam`."""

from __future__ import annotations

from htam_agent.cli import main

if __name__ == "__main__":
    main()
