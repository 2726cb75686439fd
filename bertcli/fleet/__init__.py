"""Several devices at once: a process each, which run the batches that one device would.

    windows of texts -> batches -> whoever is free -> vectors, in the order of the texts

What is in a batch is settled before anybody takes it, and a batch runs on one device as a whole: so
the vectors do not depend on how fast the others are, nor on their number. For the same reason all
devices are of one kind. The processes load the model by themselves, all at the same time; where the
parent dies, even by a kill, they find their pipe closed and end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from torch import Tensor

from bertcli.devices import devices
from bertcli.encoder import Tokens
from bertcli.encoding import Encoded
from bertcli.errors import UsageError
from bertcli.fleet.processes import Fleet, Pending
from bertcli.hub import ModelFolder
from bertcli.pipeline import Embedded, Embedder, Options, tokens_of
from bertcli.tokenizing import Run, Tally


def open_embedder(
    folder: ModelFolder, options: Options, warn: Callable[[str], None] = lambda message: None
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
    fleet = Fleet(folder, options, names, warn)
    try:
        here = Embedder.open(folder, options, warn, elsewhere=True)
    except BaseException:
        fleet.close()
        raise
    return FleetEmbedder(
        **{one.name: getattr(here, one.name) for one in fields(Embedder)}, fleet=fleet
    )


class Ahead(NamedTuple):
    """A window that is under way, and the counts of the run when it was read."""

    embedder: FleetEmbedder
    batch: list[Encoded]
    counts: dict[str, Any]


@dataclass(frozen=True)
class FleetEmbedder(Embedder):
    """An embedder whose model runs in other processes."""

    fleet: Fleet = field(kw_only=True)
    begun: Pending | None = None  # the window that is wanted next, where it is under way

    def embed(self, run: Iterable[list[Encoded]]) -> Iterator[list[Embedded]]:
        """Yield the same as one device would; of a file, later windows are begun meanwhile."""
        if isinstance(run, Run) and run.full:
            return self._ahead(run)
        return super().embed(run)

    def pooled(self, texts: list[Tokens]) -> list[Tensor]:
        """Return the vectors of the texts, from whoever was free."""
        return self.fleet.end(self.begun or self._begin(texts))

    def _begin(self, texts: list[Tokens]) -> Pending:
        return self.fleet.begin(texts, self.options, self.encoder.budget, self.encoder.tick)

    def _ahead(self, run: Run) -> Iterator[list[Embedded]]:
        """Begin windows for as long as a process may run out of work, and yield them in order.

        ``run.tally`` as the caller knows it counts the windows that were yielded, and no others.
        """
        shown, run.tally = run.tally, replace(run.tally)
        windows: deque[Ahead] = deque()
        for batch in run:
            begun = self._begin([tokens_of(item) for item in batch])
            windows.append(Ahead(replace(self, begun=begun), batch, dict(vars(run.tally))))
            while windows and self.fleet.busy:
                yield from _ended(windows.popleft(), shown)
        for window in windows:
            yield from _ended(window, shown)


def _ended(window: Ahead, shown: Tally) -> Iterator[list[Embedded]]:
    for done in window.embedder.embed([window.batch]):
        vars(shown).update(window.counts)
        yield done
