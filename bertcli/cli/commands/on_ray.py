"""`--engine ray`: from folders and globs of files to a folder of files."""

from collections.abc import Callable, Iterable
from contextlib import closing
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Literal

from bertcli.cli.display.console import Console, ProgressBar
from bertcli.cli.options.common import InputOptions, ModelOptions, OutputOptions, allowed_form
from bertcli.cli.options.groups import OptionGroup, number, option
from bertcli.errors import UsageError, counted

if TYPE_CHECKING:
    from bertcli.ray.run import Pool, RayProgress
    from bertcli.ray.worker import Done, Model, ShardJob
    from bertcli.records.source import Source


class EngineOptions(OptionGroup, panel="Engine"):
    """The engine: this machine, or the workers of a cluster."""

    engine: Literal["local", "ray"] = option(
        "ray: read folders and globs of files and write a folder of files, on the workers of "
        "a Ray cluster.",
        default="local",
        envvar="BERTCLI_ENGINE",
    )
    ray_address = option(
        "auto, host:port or ray://host:port (default: $RAY_ADDRESS, else start Ray on this "
        "machine).",
        "ADDRESS",
    )
    workers = number("Ray workers (default: as many as fit).")
    cpus_per_worker = number("CPUs and threads per Ray worker.")

    def pool(self) -> "Pool":
        """Return the workers requested; for a tokenizer of one CPU each, as it uses only one."""
        from bertcli.ray.run import Pool

        if isinstance(self, EmbedEngineOptions):
            return Pool(self.workers, self.cpus_per_worker, self.gpus_per_worker)
        return Pool(self.workers or None, self.cpus_per_worker or 1, 0.0)


class EmbedEngineOptions(EngineOptions):
    """The engine of commands with a model."""

    gpus_per_worker = number(
        "GPUs per Ray worker (default: 1 if the cluster has any).", low=0, kind=float | None
    )

    def __post_init__(self) -> None:
        if self.workers is not None and self.engine == "local":
            raise UsageError("--workers requires --engine ray")


class TokenizeEngineOptions(EngineOptions):
    """The engine of commands with a tokenizer only."""

    workers = number(
        "Ray workers (default: as many as fit); the local engine needs none.",
        low=0,
        envvar="BERTCLI_WORKERS",
    )


# Makes a job from the model, the source, the output format and the resources of a worker.
MakeJob = Callable[["Model", "Source", str, "Pool"], "ShardJob"]

COUNTED = ("records", "tokens")
LATE = 60.0  # seconds without a worker before a warning
FORMATS = ("parquet", "jsonl", "csv", "npy", "npz", "safetensors")


def on_ray(
    make: MakeJob,
    source: InputOptions,
    model: ModelOptions,
    output: OutputOptions,
    engine: EngineOptions,
    console: Console,
) -> None:
    """Run a job on every input file, on the workers of a cluster, and report the result."""
    from bertcli.ray.locations import output_place
    from bertcli.ray.run import (
        connected,
        plan,
        put_manifest,
        refuse_unwritable,
        run,
        told,
        totals,
    )
    from bertcli.ray.worker import DEAD, Model
    from bertcli.tokenizing.run import TokenCounts

    if output.output is None:
        raise UsageError("--engine ray requires -o FOLDER", "it writes one file per input file")
    form = allowed_form("parquet" if output.format == "auto" else output.format, FORMATS)
    place = output_place(output.output)
    read = source.source()
    shards = plan(read, place, form)
    refuse_unwritable(place)
    begun = monotonic()
    with connected(engine.ray_address) as nodes:
        pool = engine.pool().on(nodes)
        console.detail(f"{counted(len(shards), 'shard')} on {counted(len(nodes), 'node')}, {pool}")
        job = make(Model(model.model, model.revision, model.offline), read, form, pool)
        done = _followed(run(job, shards, pool), console)
        put_manifest(place, done)
    for line in told(done, monotonic() - begun):
        console.note(line)
    counts = totals(done)
    cut = {name: counts[name] for name in ("records", "truncated", "cut")}
    console.truncated(TokenCounts(**cut), done[0].max_length)
    console.skipped(counts["skipped"], f": see the files *{DEAD}")


def _followed(steps: "Iterable[RayProgress]", console: Console) -> "list[Done]":
    """Run to the end with a progress bar, and warn when no worker starts."""
    begun, late = monotonic(), LATE
    with closing(ProgressBar(console.watched)) as bar:
        for progress in steps:
            seconds = monotonic() - begun
            if progress.begun:
                records, tokens = (sum(done.counts[n] for done in progress.new) for n in COUNTED)
                rates = f"{records / seconds:,.0f} texts/s  {tokens / seconds:,.0f} tokens/s"
                shards = f"{len(progress.done)} of {progress.shards} shards"
                counts = f"{shards}  {records:,} texts  {rates}"
                bar.update(counts, len(progress.done) / progress.shards, seconds)
                continue
            bar.update("waiting for workers", None, seconds)
            if seconds > late:
                late = inf
                console.warn(
                    f"no worker has started in {LATE:.0f} seconds; the cluster may be busy (see "
                    "ray status)"
                )
    return progress.done
