"""Read large files without copying them: reads return views of the pages of a file.

    with open("vectors.npy", "rb") as file:
        header = bytes(MappedFile(file).read(128))

Reading 1.5 GB takes 1.5 s into new memory for each block, 0.3 s into memory that is used again.
"""

from __future__ import annotations

import io
import mmap
from typing import IO, Any

from bertcli.io.system_calls import BusErrors


class MappedFile(io.RawIOBase):
    """A mapped file that is read once, from its start. It outlives the ``file`` that it maps.

    It is unmapped once nothing refers to it or to what was read. If the file is shortened
    meanwhile, access to a page after its new end sends SIGBUS (see `BusErrors`). Raises OSError or
    ValueError for a file that cannot be mapped, such as an empty one.
    """

    def __init__(self, file: IO[bytes]) -> None:
        BusErrors.expect()
        self.pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.position = 0
        self.first_page = 0  # the position of the first page that is not released

    def read(self, size: int = -1) -> Any:
        """Return a memoryview of the next bytes, at most ``size``, and release the pages before.

        Earlier views stay valid: the system loads their pages again when they are used.
        """
        start = self.position
        self.position = len(self.pages) if size < 0 else min(start + size, len(self.pages))
        first_page = start - start % mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED") and first_page > self.first_page:
            self.pages.madvise(mmap.MADV_DONTNEED, self.first_page, first_page - self.first_page)
            self.first_page = first_page
        return memoryview(self.pages)[start : self.position]
