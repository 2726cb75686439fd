"""Safetensors files, opened with a bound on the header, which is read and kept whole."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

LARGEST = 1 << 24  # bytes of a header: those of 100,000 tensors; the library takes 100 MB


def open_safetensors(path: str | Path, framework: str) -> Any:
    """Open a file for the arrays of a framework. Raises SafetensorError, or OSError."""
    from safetensors import SafetensorError, safe_open

    with open(path, "rb") as file:
        head = file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    if length > LARGEST:
        raise SafetensorError(f"a header of {length:,} bytes, and {LARGEST:,} is the limit")
    return safe_open(path, framework=framework)
