"""The options of engines: this machine, or a Ray cluster."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from bertcli.cli.options.groups import OptionGroup, number, option
from bertcli.errors import UsageError

if TYPE_CHECKING:
    from bertcli.ray.cluster import Pool


class EngineOptions(OptionGroup):
    """The engine: this machine, or the workers of a cluster."""

    PANEL: ClassVar = "Engine"

    engine: Annotated[
        Literal["local", "ray"],
        option(
            "ray: read folders and globs of files and write a folder of files, on the workers of "
            "a Ray cluster.",
            envvar="BERTCLI_ENGINE",
        ),
    ] = "local"
    ray_address: Annotated[
        str | None,
        option(
            "auto, host:port or ray://host:port (default: $RAY_ADDRESS, else start Ray on this "
            "machine).",
            "ADDRESS",
        ),
    ] = None
    workers: Annotated[int | None, number("Ray workers (default: as many as fit).")] = None
    cpus_per_worker: Annotated[int | None, number("CPUs and threads per Ray worker.")] = None

    def pool(self) -> "Pool":
        """Return the workers requested."""
        raise NotImplementedError

    def refuse_ray_options(self) -> None:
        """Raise UsageError for options that require --engine ray."""
        for name, value in vars(self).items():
            if name not in ("engine", *self.LOCAL) and value is not None:
                raise UsageError(f"--{name.replace('_', '-')} requires --engine ray")

    LOCAL: ClassVar[tuple[str, ...]] = ()  # options that the local engine has as well


class EmbedEngineOptions(EngineOptions):
    """The engine of commands with a model."""

    gpus_per_worker: Annotated[
        float | None, number("GPUs per Ray worker (default: 1 if the cluster has any).", low=0)
    ] = None

    def pool(self) -> "Pool":
        """Return the workers requested."""
        from bertcli.ray.cluster import Pool

        return Pool(self.workers, self.cpus_per_worker, self.gpus_per_worker)


class TokenizeEngineOptions(EngineOptions):
    """The engine of commands with a tokenizer only."""

    workers: Annotated[
        int | None,
        number(
            "Ray workers (default: as many as fit); the local engine needs none.",
            low=0,
            envvar="BERTCLI_WORKERS",
        ),
    ] = None

    LOCAL: ClassVar[tuple[str, ...]] = ("workers",)

    def pool(self) -> "Pool":
        """Return the workers requested: one CPU each, as tokenizing uses only one."""
        from bertcli.ray.cluster import Pool

        return Pool(self.workers or None, self.cpus_per_worker or 1, 0.0)
