"""Make `.venv` with everything that `make demo` or `make test` needs, or leave it as it is when nothing has changed.

    python3 scripts/setup_environment.py --for run|dev [--folder .venv]

Checks the machine first: one sentence and a remedy for each thing that is missing (exit 2). Standard library only, so
that it runs before anything is installed. TORCH_INDEX names the index that the CPU build of torch is taken from where
pip's own configuration has none.
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

import machine
import torch_choice

ROOT = Path(__file__).resolve().parent.parent
STAMP = "htam-stamp.json"
INPUTS = ("pyproject.toml", "constraints.txt", "scripts/setup_environment.py", "scripts/torch_choice.py")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the virtual environment.")
    parser.add_argument("--for", dest="purpose", choices=("run", "dev"), default="run")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv")
    arguments = parser.parse_args()
    problem = machine.check_system()
    if problem:
        return refuse([problem])
    driver = machine.has_nvidia_driver()
    interpreter, python_problem = machine.find_python()
    if not python_problem and not os.path.samefile(interpreter, sys.executable):
        os.execv(interpreter, [interpreter, *sys.argv])
    key = content_key(interpreter, driver)
    if is_current(arguments.folder, key, arguments.purpose):
        return 0
    checks = (python_problem, machine.check_compiler(), machine.check_make(), machine.check_disk(str(ROOT)))
    problems = [found for found in checks if found]
    if problems:
        return refuse(problems)
    return install(interpreter, arguments.folder, arguments.purpose, driver, key)


def refuse(problems: list[machine.Problem]) -> int:
    for sentence, remedy in problems:
        print(f"set-up: {sentence} {remedy}", file=sys.stderr)
    return 2


def content_key(interpreter: str, driver: bool) -> str:
    """Changes when the environment must: by the files that decide its content, the interpreter, and the driver."""
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update(b"\0" + (ROOT / name).read_bytes())
    for part in (os.path.realpath(interpreter), str(driver), str(ROOT), os.environ.get("TORCH_INDEX", "")):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()


def is_current(folder: Path, key: str, purpose: str) -> bool:
    """True when `folder` was finished with this key, for this purpose or more, and its interpreter still starts."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if stamp.get("key") != key or (purpose == "dev" and stamp.get("purpose") != "dev"):
        return False
    python = folder / "bin" / "python"
    return python.exists() and subprocess.run([python, "-c", ""], check=False).returncode == 0


def install(interpreter: str, folder: Path, purpose: str, driver: bool, key: str) -> int:
    """The whole installation; the stamp is written last, so that an interrupted one is done again."""
    started = time.monotonic()
    python = folder / "bin" / "python"
    (folder / STAMP).unlink(missing_ok=True)
    try:
        if not same_interpreter(python, interpreter):
            say(f"Making {folder} with {interpreter}.")
            shutil.rmtree(folder, ignore_errors=True)
            run([interpreter, "-m", "venv", str(folder)])
        update_pip(str(python))
        choice = torch_choice.choose_torch(str(python), driver, os.environ.get("TORCH_INDEX") or torch_choice.CPU_INDEX)
        if not choice.arguments:
            return refuse([machine.Problem(choice.sentence, "Check the network and pip's configuration.")])
        say(choice.sentence)
        pip(str(python), "--no-deps", *choice.arguments)
        extras = ([] if purpose == "run" else ["dev"]) + (["cuda13"] if driver or purpose == "dev" else [])
        target = str(ROOT) + ("[{}]".format(",".join(extras)) if extras else "")
        say("Installing the pinned packages (constraints.txt).")
        pip(str(python), "-c", str(ROOT / "constraints.txt"), "-e", target)
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        return refuse([machine.Problem(f"This command failed: {command}", "What it printed says why; then run again.")])
    (folder / STAMP).write_text(json.dumps({"key": key, "purpose": purpose}), encoding="utf-8")
    say("Done in %.0f s." % (time.monotonic() - started))
    return 0


def same_interpreter(python: Path, interpreter: str) -> bool:
    """True when the environment's interpreter starts and has the version of the one it would be made with."""
    probe = "import sys, pip; print(sys.version)"
    try:
        ours = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    theirs = subprocess.run([interpreter, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    return ours == theirs.stdout


def update_pip(python: str) -> None:
    """An old pip downloads whole wheels to read their requirements; a new one asks for the requirements alone."""
    ran = subprocess.run([python, "-m", "pip", "install", *QUIET, "pip>=25.3"], capture_output=True, text=True)
    if ran.returncode != 0:
        say("pip could not be updated; going on with the one that Python brings (slower).")


QUIET = ("--quiet", "--disable-pip-version-check")


def pip(python: str, *arguments: str) -> None:
    run([python, "-m", "pip", "install", *QUIET, *arguments])


def run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def say(sentence: str) -> None:
    print("set-up: " + sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
