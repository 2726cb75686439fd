"""The log of a run: JSON lines, one for some steps and one for each evaluation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Log:
    """Appends lines to a file that may be cut back to where a checkpoint was made."""

    def __init__(self, path: Path, size: int = 0) -> None:
        self.file = path.open("ab")
        self.file.truncate(size)  # what a killed run wrote after its last checkpoint

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line, for others to read at once."""
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()

    def sync(self) -> int:
        """Put all lines on the disk and return how many bytes they are."""
        os.fsync(self.file.fileno())
        return self.file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log that are whole."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
