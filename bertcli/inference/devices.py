"""Where and in which number format torch computes: names of devices and dtypes, threads."""

from __future__ import annotations

import torch

from bertcli.errors import UsageError
from bertcli.inference.compute import cpu_flags, several


def available() -> list[str]:
    """Return the names of the devices that are here, the fastest kind first."""
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    if torch.xpu.is_available():
        names += [f"xpu:{index}" for index in range(torch.xpu.device_count())]
    return [*names, "cpu"]


def devices(names: str) -> list[torch.device]:
    """Return the devices that ``--device`` names: auto, or a list like ``cuda:0,cuda:1``.

    ``auto`` and a kind without a number are its first device, ``cuda:all`` is every one of a kind.
    A device may be named twice. Raises UsageError for one that is not there.
    """
    here = available()
    if names == "auto":
        return [torch.device(here[0])]
    places: list[torch.device] = []
    for name in names.split(","):
        kind, _, number = name.partition(":")
        if number == "all" and (every := [name for name in here if name.partition(":")[0] == kind]):
            places += map(torch.device, every)
            continue
        whole = name if name in here else f"{name}:0"
        if whole not in here:
            raise UsageError(
                f"device {name!r} not found", f"available for --device: {', '.join(here)}"
            )
        places.append(torch.device(whole))
    return places


def dtype_of(name: str) -> torch.dtype:
    """Return the number format of the computation; auto is float32."""
    dtype: torch.dtype = getattr(torch, "float32" if name == "auto" else name)
    return dtype


def slow(dtype: torch.dtype, device: torch.device) -> str:
    """Return why a format is slow on a device; an empty string when it is not."""
    if device.type != "cpu":
        return ""
    if dtype == torch.float16:
        return "float16 is slow on a CPU; bfloat16 may be faster"
    flags = cpu_flags()
    if dtype == torch.bfloat16 and flags and not flags & {"avx512_bf16", "amx_bf16"}:
        return "this CPU has no bfloat16 arithmetic: expect it to be slower than float32"
    return ""


def refuse_several(names: str, instead: str) -> None:
    """Raise UsageError where one device computes and a list is named."""
    if len(devices(names)) > 1:
        raise several(names, instead)


def use_threads(count: int | None) -> int:
    """Set the number of threads of one operation and return it; None leaves torch's choice."""
    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()
