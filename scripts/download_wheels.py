"""Fill a folder with the wheels that `make gpu WHEELS=folder` installs on a CUDA machine without a network.

    python3 scripts/download_wheels.py FOLDER [--python 3.12] [--machine x86_64] [--have NAME ...]

`--have` leaves out packages that the machine has (of those marked "if missing:" in offline-packages.txt); `--have all`
leaves out every one of them. torch itself is never fetched: the machine's own is used. Standard library only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import packages

GLIBC_MINORS = (5, 12, 17, 18, 24, 26, 27, 28, 31, 34, 35)
"""manylinux tags that wheels carry: pip wants each one named for a foreign machine."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch the wheels for a CUDA machine without a network.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="Python version of that machine (default 3.12)")
    parser.add_argument("--machine", default="x86_64", help="x86_64 or aarch64")
    parser.add_argument("--have", nargs="*", default=[], help="packages that the machine has, or all")
    arguments = parser.parse_args()
    have = {packages.normalise(name) for name in arguments.have}
    wanted = [
        package
        for package in packages.offline_packages()
        if not package.optional or not ("all" in have or package.name in have)
    ]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", arguments.python]
    for tag in platform_tags(arguments.machine):
        command += ["--platform", tag]
    command += ["--dest", str(arguments.folder), *(package.requirement for package in wanted)]
    code = subprocess.run(command).returncode
    if code != 0:
        print("The wheels could not all be fetched; pip's words above say which and why.", file=sys.stderr)
        return code
    # Wheels of an earlier pin or Python would make the choice on the machine ambiguous.
    wheels = sorted(arguments.folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{len(wheels)} wheels, {size / 2**20:.1f} MiB, for Python {arguments.python} in {arguments.folder}")
    return 0


def platform_tags(machine: str) -> list[str]:
    """What `--platform` accepts for wheels of this kind of Linux machine."""
    modern = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
    return [*modern, *(f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1"))]


if __name__ == "__main__":
    sys.exit(main())
