"""Rows in random order, more of them than fit into memory.

Each row goes to one of many files by chance, and each file is then put in random order in memory:
every order of all rows is as likely as any other, and memory is that of one file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]

BUCKET = 16 << 20  # bytes of a file; more only when there are more than MOST of them
MOST = 4096  # files, none of which stays open


class Shuffle:
    """Rows of one type: added in any order, yielded in random order."""

    def __init__(self, folder: Path, kind: np.dtype[Any], rows: int, rng: Random) -> None:
        """Make room for about so many ``rows`` in files in ``folder``."""
        count = min(MOST, 1 + rows * kind.itemsize // BUCKET)
        self.files = [folder / f"bucket-{number}" for number in range(count)]
        self.kind, self.rng = kind, rng

    def add(self, rows: Array) -> None:
        """Add rows, better many than few at a time: each file that gets some is opened."""
        import numpy as np

        count = len(self.files)
        chosen = np.array([int(self.rng.random() * count) for _ in range(len(rows))])
        for number in np.unique(chosen).tolist():
            with self.files[number].open("ab") as file:
                file.write(rows[chosen == number].tobytes())

    def __iter__(self) -> Iterator[Array]:
        """Yield all rows in random order, in arrays of no fixed length; the files are removed."""
        import numpy as np

        for path in self.files:
            if path.exists():
                rows = np.fromfile(path, self.kind)
                path.unlink()
                order = [self.rng.random() for _ in range(len(rows))]
                yield rows[np.argsort(order, kind="stable")]
