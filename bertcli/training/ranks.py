"""The processes of a run: one alone, or those that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from bertcli.errors import BertcliError, UsageError
from bertcli.inference.devices import devices


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, the number of processes, and the device."""

    device: torch.device
    index: int = 0
    count: int = 1
    local: int = 0  # on its machine

    @property
    def first(self) -> bool:
        """Whether this process writes for all."""
        return self.index == 0

    @property
    def silent(self) -> bool:
        """Whether another process on this machine reports errors that all of them have."""
        return self.local > 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by the sum over all processes; BertcliError when one of them died."""
        if self.count > 1:
            try:
                distributed.all_reduce(tensor)
            except RuntimeError as lost:
                raise BertcliError(
                    f"process {self.index} lost its connection to the others: "
                    f"{str(lost).splitlines()[0]}",
                    "see the message of the process that ended first",
                ) from None
        return tensor

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes of a tensor on the CPU."""
        return self.sum(tensor.to(self.device)).cpu() if self.count > 1 else tensor

    def wait(self) -> None:
        """Wait for all processes."""
        self.sum(torch.zeros(1, device=self.device))


@contextmanager
def joined(name: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started; without torchrun there is one.

    `name` is a device; with several processes auto and cuda are each one's own GPU.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    here = devices(_own(name) if count > 1 else name)
    if len(here) > 1:
        raise UsageError(
            f"--device {name}: each process trains on one device",
            "start one process per GPU: torchrun --nproc-per-node 2 -m bertcli ...",
        )
    if count == 1:
        yield Ranks(here[0])
        return
    if here[0].type == "cuda":
        torch.cuda.set_device(here[0])
    distributed.init_process_group("nccl" if here[0].type == "cuda" else "gloo")
    try:
        ranks = Ranks(here[0], distributed.get_rank(), count, _local())
        yield ranks
        ranks.wait()  # one that leaves earlier can take down gloo's threads in the others
    finally:
        distributed.destroy_process_group()


def _own(name: str) -> str:
    if name == "cuda" or (name == "auto" and torch.cuda.is_available()):
        return f"cuda:{_local()}"
    return "cpu" if name == "auto" else name


def _local() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))
