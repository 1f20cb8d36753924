"""Make `.venv-gpu` on a CUDA machine round the torch that is there (>= 2.9), with a network or without.

    python3 scripts/setup_gpu.py [--wheels FOLDER]

The interpreter is the first of $PYTHON (the one that runs this), python3 and python on PATH that has such a torch; it
may itself belong to a virtual environment, whose packages then stay visible. With --wheels everything comes from that
folder (scripts/download_wheels.py fills it) and nothing is asked of a network. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import machine
import packages

ROOT = packages.ROOT
FOLDER = ROOT / ".venv-gpu"
STAMP = FOLDER / "htam-stamp.json"
OLDEST_TORCH = (2, 9)
QUIET = ("--quiet", "--disable-pip-version-check")

# Facts of an interpreter as JSON, without importing torch.
PROBE = """
import json, sys, sysconfig
from importlib import metadata
try: torch = metadata.version("torch")
except metadata.PackageNotFoundError: torch = ""
import re
names = sorted({re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower() for d in metadata.distributions() if d.metadata["Name"]})
print(json.dumps({"executable": sys.executable, "version": list(sys.version_info[:2]), "torch": torch, "names": names,
                  "virtual": sys.prefix != sys.base_prefix,
                  "folders": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]}))
"""  # noqa: E501
CUDA_PROBE = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"


class Interpreter(NamedTuple):
    """An interpreter with a fitting torch. `folders`: its packages, to be made visible when it is a virtual one."""

    executable: str
    version: tuple[int, int]
    torch: str
    names: tuple[str, ...]
    virtual: bool
    folders: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make .venv-gpu round the torch of a CUDA machine.")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels; without it the package index is asked")
    wheels = parser.parse_args().wheels
    problems = [found for found in (machine.check_system(), machine.check_make()) if found]
    interpreter, reason = find_interpreter()
    if interpreter is None:
        problems.append(machine.Problem(reason, "Install torch for CUDA, or name its Python: make gpu PYTHON=..."))
        return refuse(problems)
    lacking = check_wheels(interpreter, wheels) if wheels is not None else None
    problems += [lacking] if lacking else []
    if problems:
        return refuse(problems)
    key = content_key(interpreter, wheels)
    if STAMP.exists() and json.loads(STAMP.read_text(encoding="utf-8")).get("key") == key:
        return 0
    device = subprocess.run([interpreter.executable, "-c", CUDA_PROBE], capture_output=True, text=True)
    if not device.stdout.strip():
        why = (device.stderr.strip().splitlines() or ["torch sees no device"])[-1]
        remedy = "Check nvidia-smi and the driver; `make demo` needs no GPU."
        return refuse([machine.Problem(f"torch {interpreter.torch} cannot use a GPU here: {why}.", remedy)])
    say(f"{device.stdout.strip()}, torch {interpreter.torch}, {interpreter.executable}.")
    return install(interpreter, wheels, key)


def find_interpreter() -> tuple[Interpreter | None, str]:
    """The first interpreter with Python 3.11 to 3.14 and torch >= 2.9; else None and why each one does not fit."""
    reasons = []
    for name in dict.fromkeys(filter(None, (sys.executable, shutil.which("python3"), shutil.which("python")))):
        ran = subprocess.run([name, "-c", PROBE], capture_output=True, text=True)
        if ran.returncode != 0:
            reasons.append(f"{name} does not start")
            continue
        facts = json.loads(ran.stdout)
        version = tuple(facts["version"])
        if not machine.OLDEST <= version <= machine.NEWEST:
            reasons.append(f"{name} is Python {version[0]}.{version[1]}")
        elif not facts["torch"]:
            reasons.append(f"{name} has no torch")
        elif tuple(map(int, facts["torch"].split(".")[:2])) < OLDEST_TORCH:
            reasons.append(f"{name} has torch {facts['torch']}, older than 2.9")
        else:
            facts.update(version=version, names=tuple(facts["names"]), folders=tuple(facts["folders"]))
            return Interpreter(**facts), ""
    return None, "No Python with torch >= 2.9 was found: " + "; ".join(reasons) + "."


def content_key(interpreter: Interpreter, wheels: Path | None) -> str:
    """Changes when the environment must."""
    digest = hashlib.sha256(repr((interpreter, str(ROOT))).encode())
    for path in (ROOT / "pyproject.toml", packages.CONSTRAINTS, packages.OFFLINE, Path(__file__)):
        digest.update(path.read_bytes())
    for wheel in sorted(wheels.glob("*.whl")) if wheels else ():
        digest.update(wheel.name.encode())
    return digest.hexdigest()


def install(interpreter: Interpreter, wheels: Path | None, key: str) -> int:
    """A fresh environment each time; the stamp is written last."""
    started = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    try:
        run(interpreter.executable, "-m", "venv", "--system-site-packages", str(FOLDER))
        show_packages(interpreter)
        if wheels is not None:
            install_offline(interpreter, wheels)
        else:
            install_online(interpreter)
        link_cuda_libraries(interpreter)
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        return refuse(
            [machine.Problem(f"This command failed: {command}.", "What it printed says why; then run again.")]
        )
    STAMP.write_text(json.dumps({"key": key}), encoding="utf-8")
    say(f"Done in {time.monotonic() - started:.0f} s.")
    return 0


def show_packages(interpreter: Interpreter) -> None:
    """--system-site-packages shows the base installation's packages, not those of a virtual environment that the
    interpreter belongs to: a path file does, after the new environment's own."""
    if interpreter.virtual:
        lines = "\n".join(dict.fromkeys(interpreter.folders)) + "\n"
        (site_packages(interpreter) / "torch-that-is-there.pth").write_text(lines, encoding="utf-8")


def link_cuda_libraries(interpreter: Interpreter) -> None:
    """cuda-bindings look for NVRTC in this environment's own folder alone: link what lies in the other one's `nvidia`
    and is not here."""
    if not interpreter.virtual:
        return
    for folder in dict.fromkeys(interpreter.folders):
        for parent, _, files in os.walk(os.path.join(folder, "nvidia")):
            own = site_packages(interpreter) / os.path.relpath(parent, folder)
            own.mkdir(parents=True, exist_ok=True)
            for name in files:
                if not os.path.lexists(own / name):
                    (own / name).symlink_to(os.path.join(parent, name))


def site_packages(interpreter: Interpreter) -> Path:
    major, minor = interpreter.version
    return FOLDER / "lib" / f"python{major}.{minor}" / "site-packages"


def needed_offline(interpreter: Interpreter) -> list[packages.Package]:
    """The listed packages, without those marked "if missing:" that the machine has."""
    return [found for found in packages.offline_packages() if not found.optional or found.name not in interpreter.names]


def check_wheels(interpreter: Interpreter, wheels: Path) -> machine.Problem | None:
    """Every needed package has a wheel of its pinned version in the folder."""
    names = [wheel.name.split("-")[:2] for wheel in wheels.glob("*.whl")]
    there = {(packages.normalise(name), version) for name, version in names}
    missing = [found.requirement for found in needed_offline(interpreter) if (found.name, found.version) not in there]
    if not missing:
        return None
    version = ".".join(map(str, interpreter.version))
    return machine.Problem(
        f"Neither this machine nor {wheels} has {', '.join(missing)}.",
        f"Fetch them where there is a network: python3 scripts/download_wheels.py {wheels} --python {version}",
    )


def install_offline(interpreter: Interpreter, wheels: Path) -> None:
    """The named packages and nothing that they ask for: the list is complete for what htam calls."""
    source = ("--no-index", "--find-links", str(wheels), "--no-deps")
    pip(*source, *(found.requirement for found in needed_offline(interpreter)))
    pip(*source, "--no-build-isolation", "-e", str(ROOT))


def install_online(interpreter: Interpreter) -> None:
    """By the pinned set, but what the machine has already stays: its torch was built with it."""
    pins = FOLDER / "pins.txt"
    lines = [f"{name}=={version}" for name, version in packages.pinned().items() if name not in interpreter.names]
    pins.write_text("\n".join([*lines, f"torch=={interpreter.torch}"]) + "\n", encoding="utf-8")
    pip("-c", str(pins), "-e", f"{ROOT}[test,cuda13]")


def pip(*arguments: str) -> None:
    run(str(FOLDER / "bin" / "python"), "-m", "pip", "install", *QUIET, *arguments)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def refuse(problems: list[machine.Problem]) -> int:
    for sentence, remedy in problems:
        print(f"set-up: {sentence} {remedy}", file=sys.stderr)
    return 2


def say(sentence: str) -> None:
    print("set-up: " + sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
