"""Can each extra be installed on each Python, from wheels alone? Resolved by uv, not installed.

    pip install uv && python benchmarks/extras.py [3.10 ...]

Exit code 1 when one cannot. seqeval, of the tests alone, comes as source.
"""

import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OPTIONS = ("--quiet", "--only-binary", ":all:", "--no-binary", "seqeval")
OPTIONS += ("--constraints", ROOT / "constraints.txt", ROOT / "pyproject.toml")


def resolves(version: str, extra: str) -> bool:
    """Return whether all packages of an extra are there for a Python on this platform."""
    where = ("--python-version", version, "--extra", extra)
    done = subprocess.run(
        ["uv", "pip", "compile", *OPTIONS, *where], capture_output=True, text=True
    )
    reason = "" if done.returncode == 0 else f"no: {' '.join(done.stderr.split())[:200]}"
    print(f"{version}  {extra:<9} {reason or 'yes'}")
    return not reason


if __name__ == "__main__":
    extras = metadata("bertcli").get_all("Provides-Extra") or []
    cases = [(version, extra) for version in sys.argv[1:] or VERSIONS for extra in extras]
    sys.exit(not all([resolves(*case) for case in cases]))
