"""Several devices at once: a process each, which run the batches that one device would.

    windows of texts -> batches -> whoever is free -> vectors, in the order of the texts

What is in a batch is settled before anybody takes it, and a batch runs on one device as a whole: so
the vectors do not depend on how fast the others are, nor on their number. For the same reason all
devices are of one kind. The processes load the model by themselves, all at the same time; where the
parent dies, even by a kill, they find their pipe closed and end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields

from torch import Tensor

from bertcli.embedding.embedder import Embedder, tokens_of
from bertcli.embedding.options import EmbedOptions
from bertcli.errors import UsageError
from bertcli.hub import ModelFolder
from bertcli.inference.devices import devices
from bertcli.inference.encoder import Tokens
from bertcli.inference.pool import Pending, ProcessPool
from bertcli.records.reader import Reader
from bertcli.tokenizing.run import Counted, TokenizeRun


def open_embedder(
    folder: ModelFolder, options: EmbedOptions, warn: Callable[[str], None] = lambda message: None
) -> Embedder:
    """Load a model on the device, or on all the devices, that the options name.

    Raises what ``Embedder.open`` does, and UsageError for devices of several kinds.
    """
    names = [str(device) for device in devices(options.device)]
    if len(names) == 1:
        return Embedder.open(folder, options, warn)
    if len({name.partition(":")[0] for name in names}) > 1:
        raise UsageError(
            f"--device {options.device} names devices of several kinds",
            "their results differ in the last digits; name devices of one kind",
        )
    fleet = ProcessPool(folder, options, names, warn)
    try:
        here = Embedder.open(folder, options, warn, elsewhere=True)
    except BaseException:
        fleet.close()
        raise
    return FleetEmbedder(
        **{one.name: getattr(here, one.name) for one in fields(Embedder)}, fleet=fleet
    )


@dataclass(frozen=True)
class FleetEmbedder(Embedder):
    """An embedder whose model runs in other processes."""

    fleet: ProcessPool = field(kw_only=True)

    @property
    def threads(self) -> int | None:
        """The threads of each process."""
        return self.fleet.threads if self.encoder.device.type == "cpu" else None

    def run(self, reader: Reader, *, full: bool = False) -> TokenizeRun:
        """Return the same run; where its windows are full, later ones are begun ahead."""
        run = super().run(reader, full=full)
        if full and not self.options.per_token:
            run.through = self._ahead
        return run

    def pooled(self, texts: Sequence[Tokens]) -> list[Tensor]:
        """Return the vectors of the texts, from whoever was free."""
        ahead = self.fleet.ahead
        if ahead and ahead[0].texts == list(texts):
            return self.fleet.end(ahead.popleft())
        return self.fleet.end(self._begin(list(texts)))

    def _begin(self, texts: list[Tokens]) -> Pending:
        return self.fleet.begin(texts, self.options, self.encoder.budget, self.encoder.tick)

    def _ahead(self, windows: Iterator[Counted]) -> Iterator[Counted]:
        """Begin windows for as long as a process may run out of work, and yield them in order."""
        self.fleet.ahead.clear()  # what a run left that was given up
        held: deque[Counted] = deque()
        for window in windows:
            if texts := [tokens_of(item) for item in window[1]]:
                self.fleet.ahead.append(self._begin(texts))
            held.append(window)
            while held and self.fleet.busy:
                yield held.popleft()
        yield from held
