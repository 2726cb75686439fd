"""A model that torch runs, opened once: for vectors, for every task, and for attention maps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from bertcli.checkpoints.load import load
from bertcli.checkpoints.load_report import LoadReport
from bertcli.errors import UsageError
from bertcli.inference.device_queue import DeviceQueue
from bertcli.inference.devices import (
    devices,
    dtype_of,
    one_thread,
    put,
    refuse_several,
    slow,
    use_threads,
)
from bertcli.inference.encoder import Encoder
from bertcli.inference.options import Compute
from bertcli.inference.pool import ProcessPool
from bertcli.inference.runner import Runner
from bertcli.inference.runtime import ModelSpec, Runtime
from bertcli.inference.tell import SILENCE, Tell
from bertcli.inference.varlen import varlen_kernel
from bertcli.models.heads import ARCHITECTURES
from bertcli.models.surgery import prepare
from bertcli.tokenizing.tokenizer import Tokenizer


@dataclass(frozen=True)
class TorchRuntime(Runtime):
    """A model that torch runs. ``runner`` is its encoder, or a pool of processes with one each.

    The weights in ``encoder`` are not kept where other processes run the model.
    """

    encoder: Encoder
    report: LoadReport  # what the files hold, also beyond the model

    @classmethod
    def open(cls, spec: ModelSpec, tokenizer: Tokenizer, tell: Tell = SILENCE) -> TorchRuntime:
        """Load a model, on as many devices as are named.

        Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
        choice that this model or this machine cannot follow.
        """
        if spec.one_device:
            refuse_several(spec.compute.device, "name one of them")
        threads = use_threads(spec.compute.threads)
        places = _of_one_kind(spec.compute.device)
        if message := slow(dtype_of(spec.compute.dtype), places[0]):
            tell.warn(message)
        pool = None
        if len(places) > 1:
            pool = _pool(spec, places, max(1, threads // len(places)))
        try:
            encoder, report = _loaded(spec, places[0], tell, elsewhere=bool(pool))
        except BaseException:
            if pool:
                pool.close()
            raise
        names, config = tuple(map(str, places)), encoder.bert.config
        return cls(
            spec, tokenizer, config, pool or _runner(encoder), names, threads, encoder, report
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the numbers of this runner, for manifests."""
        encoder, here = self.encoder, self.encoder.device.type == "cpu"
        dtype = encoder.bert.embeddings.word_embeddings.weight.dtype
        return {
            "backend": "torch",
            "dtype": str(dtype)[6:],
            "kernel": encoder.kernel,
            "linear": encoder.linear,
            "device": encoder.device.type,  # devices of a kind give the same numbers
            # where they compute: the last bits of a sum depend on them
            "threads": self.runner.threads if here else None,
            "batch_tokens": encoder.budget,
        }

    def one_thread(self) -> AbstractContextManager[None]:
        """Compute on one thread while the block runs."""
        return one_thread()


def open_runner(spec: ModelSpec) -> Runner:
    """Load a model in a process of a pool, whose parent has checked it and says what is wrong."""
    use_threads(spec.compute.threads)
    return _runner(_loaded(spec, devices(spec.compute.device)[0])[0])


def _runner(encoder: Encoder) -> Runner:
    return DeviceQueue(encoder) if encoder.device.type == "cuda" else encoder


def _loaded(
    spec: ModelSpec, device: torch.device, tell: Tell = SILENCE, *, elsewhere: bool = False
) -> tuple[Encoder, LoadReport]:
    """Read the weights; where other processes run the model, only to see that they can."""
    dtype = dtype_of(spec.compute.dtype)
    model, report = load(spec.folder, ARCHITECTURES[spec.kind], pooler=spec.pooler, dtype=dtype)
    put(model, torch.device("cpu") if elsewhere else device)
    encoder = Encoder(model, spec.reading, budget_of(spec.compute, device), device)
    if device.type == "cuda":
        encoder.varlen = varlen_kernel(encoder.bert, device, tell)
    if spec.prepared:
        encoder.linear = prepare(encoder.bert, device)
    if elsewhere:
        del encoder.bert.encoder.layer[:]
        model.to("meta")
    return encoder, report


def _pool(spec: ModelSpec, places: Sequence[torch.device], threads: int) -> ProcessPool:
    """Start a process per device, each with so many threads."""
    computes = [replace(spec.compute, device=str(place), threads=threads) for place in places]
    openers = [partial(open_runner, replace(spec, compute=compute)) for compute in computes]
    names = [compute.device for compute in computes]
    return ProcessPool(names, openers, threads, budget_of(spec.compute, places[0]))


def _of_one_kind(names: str) -> tuple[torch.device, ...]:
    """Return the devices that are named. Raises UsageError for devices of several kinds."""
    found = tuple(devices(names))
    if len({place.type for place in found}) > 1:
        raise UsageError(
            f"--device {names} names devices of several kinds",
            "their results differ in the last digits; name devices of one kind",
        )
    return found


def budget_of(compute: Compute, device: torch.device) -> int:
    """Return the tokens of a batch: few enough for a CPU's cache, or many for a GPU."""
    return compute.batch_tokens or (4096 if device.type == "cpu" else 1 << 16)
