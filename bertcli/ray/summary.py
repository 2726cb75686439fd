"""The result of a run over shards: its manifest, and messages."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertcli.files.addresses import public
from bertcli.files.versions import __version__
from bertcli.ray import locations
from bertcli.ray.worker import Done, manifest_of
from bertcli.vectors.journal import put_json

NAME = "manifest.json"


def totals(done: Sequence[Done]) -> Counter[str]:
    """Return the counts of all shards together; of ``longest``, the largest."""
    counts = Counter[str]()
    for shard in done:
        counts.update(shard.counts)
    counts["longest"] = max((shard.counts["longest"] for shard in done), default=0)
    return counts


def put_manifest(folder: str, done: Sequence[Done]) -> None:
    """Write the manifest of a whole run beside its shards, in the order of their names."""
    base = folder.rstrip("/")
    ordered = sorted(done, key=lambda one: one.shard.output)
    made: dict[str, Any] = next((found for one in ordered if (found := manifest_of(one.shard))), {})
    value = {
        "bertcli": __version__,
        "by": made["shard"].get("by") if made else None,
        "counts": dict(totals(done)),
        "shards": [
            {
                "source": public(locations.named(one.shard.source)),
                "output": one.shard.output.removeprefix(base + "/"),
                "records": one.counts["records"],
                "sha256": one.sha256,
            }
            for one in ordered
        ],
    }
    if locations.is_local(base):
        put_json(locations.local_path(base) / NAME, value)
        return
    with tempfile.TemporaryDirectory(prefix="bertcli-") as scratch:
        file = Path(scratch) / NAME
        put_json(file, value)
        locations.put(file, f"{base}/{NAME}")


def told(done: Sequence[Done], seconds: float) -> Iterator[str]:
    """Describe how much was done, how fast, and by which worker."""
    new = [one for one in done if not one.passed_over]
    counts = totals(new)
    passed = f", {len(done) - len(new)} already done" if len(new) < len(done) else ""
    yield f"{len(new)} of {len(done)} shards made{passed}: {_rates(counts, seconds)}"
    for worker in sorted({one.worker for one in new}):
        mine = [one for one in new if one.worker == worker]
        busy = sum(one.seconds for one in mine)
        shards = "1 shard" if len(mine) == 1 else f"{len(mine)} shards"
        yield f"worker {worker}: {shards}, {_rates(totals(mine), busy)}"


def _rates(counts: Counter[str], seconds: float) -> str:
    seconds = max(seconds, 1e-9)
    records, tokens = counts["records"], counts["tokens"]
    return (
        f"{records:,} texts, {tokens:,} tokens in {seconds:.1f} s "
        f"({records / seconds:,.0f} texts/s, {tokens / seconds:,.0f} tokens/s)"
    )
