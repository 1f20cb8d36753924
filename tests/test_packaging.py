"""What is shipped: light imports, the wheel's content, pins that agree with each other, and set-up checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import machine
import packages
import pytest
from packaging.requirements import Requirement

from htam_agent.version import __version__

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY = {"torch", "langgraph", "chromadb", "langchain_core", "langchain_openai", "openai", "numpy", "cuda"}


def imported_by(code: str, *arguments: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    names = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert "htam_agent" in names, "the probe itself must have worked"
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("import htam_agent", ()),
        ("from htam_agent.cli import main; main()", ("--help",)),
        ("from htam_agent.cli import main; main()", ("--version",)),
        ("from htam_agent.cli import main; main()", ("optimize", "--help")),
        ("from htam_agent.cli import main; main()", ("config",)),
    ],
)
def test_heavy_packages_are_not_imported(code: str, arguments: tuple[str, ...]) -> None:
    assert not imported_by(code, *arguments) & HEAVY


def test_the_version_is_one() -> None:
    assert metadata.version("htam_agent") == __version__
    ran = subprocess.run(
        [sys.executable, "-c", "from htam_agent.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["htam_agent", __version__]


def test_every_declared_range_contains_its_pin() -> None:
    pins = packages.pinned()
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["cuda13"], *extras["test"], *extras["dev"]]
    for requirement in map(Requirement, wanted):
        name = packages.normalise(requirement.name)
        if name != "htam-agent":
            assert name in pins, f"{name} is not pinned"
            assert requirement.specifier.contains(pins[name]), f"{requirement} excludes the pin {pins[name]}"
    assert pins["structlog"].startswith("25."), "the LangGraph server asks for structlog < 26"


def test_the_installed_set_is_the_pinned_one() -> None:
    """Dependencies of the package, followed through the metadata of what is installed; torch's own are its affair."""
    pins = packages.pinned()
    seen: set[str] = set()
    waiting = [Requirement(text) for text in PROJECT["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = packages.normalise(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        assert name in pins, f"{name} is installed as a dependency and not pinned in constraints.txt"
        if name != "torch":
            waiting += [Requirement(text) for text in metadata.requires(name) or ()]
    assert len(seen) > 40


def test_offline_packages_are_pinned_and_named_once() -> None:
    names = [package.name for package in packages.offline_packages()]
    assert len(names) == len(set(names)) > 50
    assert "torch" not in names
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert packages.normalise(requirement.name) in {*names, "torch"}


def test_an_unpinned_offline_package_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("rich\nif missing: no-such-package\n")
    with pytest.raises(ValueError, match="no-such-package"):
        packages.offline_packages(listed)


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("Darwin", ("macOS", "container")),
        ("Windows", ("Windows", "WSL2")),
        ("MINGW64_NT-10.0", ("WSL2",)),
        ("AIX", ("AIX",)),
    ],
)
def test_other_systems_are_told_what_to_use(system: str, words: tuple[str, ...]) -> None:
    problem = machine.check_system(system)
    assert problem is not None
    assert all(word in " ".join(problem) for word in words)


def test_this_machine_passes_the_checks() -> None:
    assert machine.check_system("Linux") is None
    assert machine.check_compiler() is None
    assert machine.check_disk(str(ROOT), wanted=1) is None


def test_what_is_missing_is_said_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho 'unsupported option -fopenmp' >&2\nexit 1\n")
    fake.chmod(0o755)
    found = machine.check_compiler(str(fake))
    assert found is not None
    assert "unsupported option -fopenmp" in found.sentence
    crash = tmp_path / "crash"
    crash.write_text('#!/bin/sh\nprintf "#!/bin/sh\\nexit 3\\n" > "$4"; chmod +x "$4"\n')
    crash.chmod(0o755)
    found = machine.check_compiler(str(crash))
    assert found is not None
    assert "does not run" in found.sentence
    full = machine.check_disk(str(tmp_path), wanted=10**18)
    assert full is not None
    assert "GB free" in full.sentence
    monkeypatch.setenv("PATH", str(tmp_path))
    for problem in (machine.check_make(), machine.check_compiler("gxx")):
        assert problem is not None
        assert "apt-get install" in problem.remedy


def test_an_interpreter_that_does_not_fit_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "python3.14"
    old.write_text("#!/bin/sh\necho version 3.9,ensurepip\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found, problem = machine.find_python(str(old))
    assert problem is not None
    assert "3.9" in problem.sentence
    assert "python3-venv" in problem.remedy
    (tmp_path / "python3.11").symlink_to(sys.executable)
    found, problem = machine.find_python(str(old))
    assert (found, problem) == (str(tmp_path / "python3.11"), None)


def test_make_says_that_python_is_missing() -> None:
    ran = subprocess.run(
        ["make", "--no-print-directory", "demo", "PYTHON=no-such-python"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "no-such-python was not found. Install Python 3.11 to 3.14" in ran.stderr


def test_the_ci_script_fails_when_a_command_fails() -> None:
    ran = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run")],
        capture_output=True, text=True, env={**os.environ, "PYTHON": "no-such-python"}, check=False,
    )  # fmt: skip
    assert ran.returncode != 0


def test_no_tracked_file_names_a_machine_of_ours() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    texts = {name: (ROOT / name).read_bytes() for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    pattern = re.compile(rb"(^|[^A-Za-z0-9_.])/(work|root)/")
    assert [name for name, text in texts.items() if pattern.search(text)] == []


@pytest.mark.slow
def test_the_wheel_carries_prompts_seed_and_skeletons(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "-w",
            tmp_path,
            ROOT,
        ],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    for source, target in (("prompts", "htam_agent/_prompts"), ("htam_agent/memory/seed", "htam_agent/memory/seed"),
                           ("htam_agent/coding/skeletons", "htam_agent/coding/skeletons")):  # fmt: skip
        shipped = [path.relative_to(ROOT / source).as_posix() for path in (ROOT / source).rglob("*.*")]
        shipped = [name for name in shipped if "__pycache__" not in name]
        assert shipped, source
        assert {f"{target}/{name}" for name in shipped} <= names
    listed = subprocess.run(
        [sys.executable, "-m", "htam_agent", "prompts", "list", "--json"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    folder = str(tmp_path / "installed" / "htam_agent" / "_prompts")
    assert {os.path.dirname(prompt["path"]) for prompt in json.loads(listed.stdout)["prompts"]} == {folder}
    assert "htam_agent/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "benchmarks/"))]
