"""A compiled model that OpenVINO reads in a thread, while Python has other things to do."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread
from typing import Any

from bertcli.inference.compiled_cache import CompiledModel
from bertcli.inference.openvino import core_for_cpu, openvino_core


class ModelImport(Thread):
    """OpenVINO reads a compiled model, ``made``.

    Raises OpenvinoError where OpenVINO is not installed, or cannot be imported. It is no daemon:
    where Python takes its threads apart below a library, that crashes.
    """

    needed = False  # a process that ends at once does not wait for it

    def __init__(self, made: CompiledModel, given: Mapping[str, str | int]) -> None:
        super().__init__()
        self.made, self.given, self.library = made, given, openvino_core()
        self.failed: RuntimeError | MemoryError | TypeError | None = None
        self.start()

    def run(self) -> None:
        """Read it; Python's lock is free meanwhile."""
        try:
            tensor = self.library.Tensor(self.made.blob, shared_memory=True)
            self.found = core_for_cpu().import_model(tensor, "CPU", self.given)
        except (RuntimeError, MemoryError, TypeError) as failed:  # of a setting that is no UTF-8
            self.failed = failed

    def model(self) -> Any:
        """Wait for the model. Raises what OpenVINO raised."""
        self.join()
        if self.failed:
            raise self.failed
        return self.found
