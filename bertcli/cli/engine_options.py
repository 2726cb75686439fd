"""The options that say on what engine a command runs."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

ENGINE = "Engine"


@dataclass(frozen=True)
class EngineOptions:
    """One process here, or the workers of a cluster."""

    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="ray: folders and globs of files in, a folder of files out, by the workers of a "
            "Ray cluster.",
            envvar="BERTCLI_ENGINE",
            rich_help_panel=ENGINE,
        ),
    ] = "local"
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="auto, host:port or ray://host:port (default: $RAY_ADDRESS, else this machine).",
            envvar="BERTCLI_RAY_ADDRESS",
            rich_help_panel=ENGINE,
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Workers of the engine (default: as many as fit).",
            envvar="BERTCLI_WORKERS",
            rich_help_panel=ENGINE,
        ),
    ] = None
    cpus_per_worker: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="CPUs, and threads, of a worker (default: at most 4).",
            envvar="BERTCLI_CPUS_PER_WORKER",
            rich_help_panel=ENGINE,
        ),
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0,
            help="GPUs of a worker (default: 1 where the cluster has any).",
            envvar="BERTCLI_GPUS_PER_WORKER",
            rich_help_panel=ENGINE,
        ),
    ] = None
