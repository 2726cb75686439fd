"""Rows in random order, more of them than fit into memory.

Each row goes to one of many files by chance, and each file is then put in random order in memory:
every order of all rows is as likely as any other, and the disk is read and written in long runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]

BUCKET = 64 << 20  # bytes in memory at a time; more only when there are more than MOST of them
MOST = 128  # open files


class Shuffle:
    """Rows of one type: added in any order, yielded in random order."""

    def __init__(self, folder: Path, kind: np.dtype[Any], rows: int, rng: Random) -> None:
        """Make room for about so many ``rows`` in files in ``folder``."""
        count = min(MOST, 1 + rows * kind.itemsize // BUCKET)
        self.kind, self.rng = kind, rng
        with ExitStack() as stack:
            self.files = [
                stack.enter_context((folder / f"bucket-{number}").open("x+b"))
                for number in range(count)
            ]
            self.open = stack.pop_all()

    def add(self, rows: Array) -> None:
        """Add rows."""
        import numpy as np

        count = len(self.files)
        chosen = np.array([int(self.rng.random() * count) for _ in range(len(rows))])
        for number, file in enumerate(self.files):
            file.write(rows[chosen == number].tobytes())

    def __iter__(self) -> Iterator[Array]:
        """Yield all rows in random order, in arrays of no fixed length; files are then empty."""
        import numpy as np

        for file in self.files:
            file.seek(0)
            rows = np.frombuffer(file.read(), self.kind)
            order = [self.rng.random() for _ in range(len(rows))]
            file.truncate(0)
            yield rows[np.argsort(order, kind="stable")]

    def close(self) -> None:
        """Close the files."""
        self.open.close()
