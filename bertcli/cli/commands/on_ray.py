"""`--engine ray`: read folders and globs of files, and write a folder of files."""

from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Literal

from bertcli.cli.display.console import Console
from bertcli.cli.options.common import InputOptions, ModelOptions, OutputOptions, check_format
from bertcli.cli.options.groups import OptionGroup, number, option
from bertcli.errors import UsageError, counted
from bertcli.formats.registry import JSON, JSONL, PARQUET, VECTORS

if TYPE_CHECKING:
    from bertcli.ray.run import Pool, ShardJob


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
        """Return the requested workers. Those of a tokenizer have one CPU, as it uses only one."""
        from bertcli.ray.run import Pool

        if isinstance(self, EmbedEngineOptions):
            return Pool(self.workers, self.cpus_per_worker, self.gpus_per_worker)
        return Pool(self.workers or None, self.cpus_per_worker or 1, 0.0)


class EmbedEngineOptions(EngineOptions):
    """The engine of commands with a model."""

    gpus_per_worker = number(
        "GPUs per Ray worker (default: 1 if the cluster has any).", low=0, annotation=float | None
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


LOCK = ".bertcli.lock"  # in the folder of the output, while a run writes there


def on_ray(
    make_job: Callable[..., "ShardJob"],
    source: InputOptions,
    model: ModelOptions,
    output: OutputOptions,
    engine: EngineOptions,
    console: Console,
) -> None:
    """Run a job on every input file, on the workers of a cluster, and report the result.

    ``make_job(find_model, source, file_format, pool)`` returns the job.
    """
    from bertcli.io.lock import locked
    from bertcli.io.publish import converting_os_errors
    from bertcli.ray.locations import is_local, local_path, output_url
    from bertcli.ray.run import (
        ERRORS_SUFFIX,
        ShardRun,
        connected,
        plan_shards,
        summary_line,
        total_counts,
        write_manifest,
    )

    if output.output is None:
        raise UsageError("--engine ray requires -o FOLDER", "it writes one file per input file")
    file_format = PARQUET if output.format == "auto" else output.format
    if file_format == JSON:
        file_format = JSONL
    check_format(file_format, VECTORS)
    output_folder = output_url(output.output)
    job_source = source.source()
    shards = plan_shards(job_source, output_folder, file_format)
    start = monotonic()
    with ExitStack() as stack:
        if is_local(output_folder):
            folder = local_path(output_folder)
            with converting_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / LOCK, folder, keep_folder=True))
        nodes = stack.enter_context(connected(engine.ray_address))
        pool = engine.pool().on(nodes)
        console.detail(f"{counted(len(shards), 'shard')} on {counted(len(nodes), 'node')}, {pool}")
        job = make_job(model.folder, job_source, file_format, pool)
        results = console.follow(ShardRun(job, shards, pool))
        write_manifest(output_folder, results)
    console.note(summary_line(results, monotonic() - start))
    console.warn_truncated(total_counts(results), results[0].max_length)
    console.exit_if_skipped(
        sum(shard.skipped for shard in results), f": see the files *{ERRORS_SUFFIX}"
    )
