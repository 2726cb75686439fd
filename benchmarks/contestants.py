"""Who takes part: a table, and why somebody does not. Nothing here imports what it measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from machine import cpu_flags

OURS, REFERENCE = "bertcli float32", "sentence-transformers float32"


@dataclass(frozen=True)
class Contestant:
    """One way to turn texts into vectors; ``kind`` names its loader in engines.py."""

    name: str
    kind: str
    precision: str
    packages: tuple[str, ...] = ()  # what has to be installed
    options: Mapping[str, Any] = field(default_factory=dict)  # the loader's own
    threads: int | None = None  # another number than that of the run
    device: str = "cpu"

    @property
    def ours(self) -> bool:
        return self.kind == "bertcli"

    @property
    def ceiling(self) -> bool:
        """Whether it only multiplies matrices, to show what the machine can do."""
        return self.kind == "products"


def bertcli(name: str, precision: str = "float32", **options: Any) -> Contestant:
    """Return bertcli with the ``accuracy`` of an export, or further fields of ``EmbedOptions``."""
    return Contestant(name, "bertcli", precision, options=options)


def sentence_transformers(precision: str, device: str = "cpu") -> Contestant:
    name = f"sentence-transformers {precision}"
    packages = ("sentence_transformers",)
    return Contestant(name, "sentence_transformers", precision, packages, device=device)


def products(precision: str, device: str = "cpu") -> Contestant:
    """Return the matrix products of the model, and nothing else of it."""
    return Contestant(f"products {precision}", "products", precision, device=device)


ONNX = ("onnx", "transformers")
CPU = (
    # several batches at once, as `bertcli embed` runs files
    *(
        bertcli(f"bertcli {precision}", precision, parallel=True)
        for precision in ("float32", "bfloat16", "int8")
    ),
    bertcli("bertcli int8, fast", "int8", accuracy="fast", parallel=True),
    bertcli("bertcli float32, torch", backend="torch"),
    *(sentence_transformers(precision) for precision in ("float32", "bfloat16")),
    *(
        Contestant(f"ONNX Runtime {precision}", "onnxruntime", precision, ("onnxruntime", *ONNX))
        for precision in ("float32", "int8")
    ),
    *(
        Contestant(f"CTranslate2 {precision}", "ctranslate2", precision, ("ctranslate2",))
        for precision in ("float32", "int8")
    ),
    *(
        Contestant(f"OpenVINO {precision}", "openvino", precision, ("openvino", "transformers"))
        for precision in ("float32", "bfloat16")
    ),
    Contestant("OpenVINO int8", "openvino", "int8", ("openvino", "nncf", "transformers")),
    *(products(precision) for precision in ("float32", "bfloat16", "int8")),
)


def with_threads(contestant: Contestant, threads: int) -> Contestant:
    return replace(contestant, name=f"{contestant.name}, {threads} threads", threads=threads)


def hindrance(contestant: Contestant, *, forced: bool = False) -> str:
    """Return why a contestant does not take part on this machine; an empty string when it does.

    Only ``forced`` does one run that the CPU has no arithmetic for: it would take most of the time.
    """
    missing = [name for name in contestant.packages if find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    flags = cpu_flags()
    on_cpu = contestant.device == "cpu" and contestant.precision == "bfloat16"
    if on_cpu and not forced and flags and not flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        return "this CPU has no bfloat16 arithmetic"
    return ""


def chosen(all_: Sequence[Contestant], names: Sequence[str]) -> list[Contestant]:
    """Return those whose name holds one of ``names``; all when there are none."""
    return [one for one in all_ if not names or any(name in one.name for name in names)]
