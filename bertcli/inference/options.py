"""Where and how a model runs, as a user chooses it. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from bertcli.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Compute:
    """Devices, number format, threads and batch size. None, or auto, leaves the choice to us."""

    backend: str = "auto"  # or torch, or openvino
    device: str = "auto"  # or a list: a process for each
    dtype: str = "auto"
    threads: int | None = None  # of all processes together
    batch_tokens: int | None = None


def options_from(cls: type[T], options: Mapping[str, Any], **other: Any) -> T:
    """Return a record of options by their names, and of others. UsageError for an unknown one."""
    names = [x.name for x in fields(cls) if x.init and x.name not in other]  # type: ignore[arg-type]
    if unknown := options.keys() - {*names}:
        raise UsageError(f"unknown option {min(unknown)!r}", f"one of {', '.join(names)}")
    return cls(**options, **other)


def several(names: str, instead: str) -> UsageError:
    """Return the refusal of a list of devices where one computes."""
    return UsageError(f"--device {names} names several devices; this command takes one", instead)
