"""Where and how a model runs, as a user chooses it. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass

from bertcli.errors import UsageError


@dataclass(frozen=True)
class Compute:
    """Devices, number format, threads and batch size. None, or auto, leaves the choice to us."""

    backend: str = "auto"  # or torch, or openvino
    device: str = "auto"  # or a list: a process for each
    dtype: str = "auto"
    threads: int | None = None  # of all processes together
    batch_tokens: int | None = None


def several(names: str, instead: str) -> UsageError:
    """Return the refusal of a list of devices where one computes."""
    return UsageError(f"--device {names} names several devices; this command takes one", instead)
