"""The options of `bertcli embed`: what vectors are made of, where they are computed and kept."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import typer

from bertcli.cli.options.common import ParseSpecial, SpecialTokens
from bertcli.cli.options.groups import COMPUTE, LAYOUT, OUTPUT, record
from bertcli.embedding.options import ALONE, POOLINGS, EmbedOptions
from bertcli.errors import UsageError


def _complete_pooling(incomplete: str) -> list[str]:
    before, plus, _ = incomplete.rpartition("+")
    names = [f"{before}{plus}{mode}" for mode in POOLINGS]
    return [name for name in (*names, *ALONE) if name.startswith(incomplete)]


@dataclass(frozen=True)
class VectorOptions:
    """What a vector is made of."""

    PANEL: ClassVar = "Vectors"

    pooling: Annotated[
        str,
        typer.Option(
            metavar="MODE[+MODE...]",
            help="cls, mean, max, mean_sqrt_len, weightedmean or lasttoken; several, as mean+max, "
            "are put one behind the other. Or pooler; none (--token-vectors); auto: what the model "
            "says, else mean.",
            envvar="BERTCLI_POOLING",
            autocompletion=_complete_pooling,
        ),
    ] = "auto"
    token_vectors: Annotated[
        bool,
        typer.Option("--token-vectors", help="A vector for each token, special ones included."),
    ] = False
    word_vectors: Annotated[
        Literal["first", "last", "mean", "max"] | None,
        typer.Option(
            help="A vector for each word: of its first or last token, or the mean or max of all."
        ),
    ] = None
    layers: Annotated[
        str,
        typer.Option(
            metavar="L[,L...]",
            help="-1 is the last layer, 0 the embedding output; higher ones are not computed.",
        ),
    ] = "-1"
    layer_combine: Annotated[
        Literal["mean", "sum", "concat", "stack"],
        typer.Option(help="How several layers become one."),
    ] = "mean"
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Give vectors length 1 (default: what the model says; off for tokens and words).",
        ),
    ] = None
    dim: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="The first N dimensions, before normalising (Matryoshka)."
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"],
        typer.Option(help="Of the written vectors."),
    ] = "float32"
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Put before each text.")] = None
    prompt_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="A prompt that the model's folder has.")
    ] = None

    @property
    def mode(self) -> str:
        """The pooling asked for. Raises UsageError when that and vectors of tokens are."""
        if not self.token_vectors:
            return self.pooling
        other = f"--word-vectors {self.word_vectors}" if self.word_vectors else ""
        if self.pooling not in ("auto", "none"):
            other = f"--pooling {self.pooling}"
        if other:
            raise UsageError(f"--token-vectors and {other} exclude each other", "give one of them")
        return "none"


@dataclass(frozen=True)
class LengthOptions:
    """What becomes of long texts."""

    PANEL: ClassVar = LAYOUT

    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="Tokens that a text is cut to (default: the model's).",
            envvar="BERTCLI_MAX_LENGTH",
        ),
    ] = None
    on_truncate: Annotated[
        Literal["warn", "error", "ignore", "window"],
        typer.Option(
            help="What to do with a longer text; window: encode all of it in overlapping windows.",
            envvar="BERTCLI_ON_TRUNCATE",
        ),
    ] = "warn"
    stride: Annotated[int, typer.Option(metavar="N", min=0, help="Tokens that windows share.")] = 0
    special_tokens: SpecialTokens = True
    parse_special: ParseSpecial = True


@dataclass(frozen=True)
class ComputeOptions:
    """Where and how it is computed."""

    PANEL: ClassVar = COMPUTE

    device: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="auto (the first of those here), cpu, cuda, cuda:N, mps or xpu; cuda:0,cuda:1 or "
            "cuda:all: a process each.",
            envvar="BERTCLI_DEVICE",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        typer.Option(
            help="Of the computation; auto is float32. int8 (CPU): near, and faster.",
            envvar="BERTCLI_DTYPE",
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Threads on a CPU, of all processes together (default: every core).",
            envvar="BERTCLI_THREADS",
        ),
    ] = None
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Tokens of a batch; halved when memory runs out.",
            envvar="BERTCLI_BATCH_TOKENS",
        ),
    ] = None
    window: Annotated[
        int, typer.Option(metavar="N", min=1, help="Records sorted by length together.")
    ] = 4096


@dataclass(frozen=True)
class VectorFileOptions:
    """How a file of vectors is written."""

    PANEL: ClassVar = OUTPUT

    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run that was killed had got to.")
    ] = False
    manifest: Annotated[
        bool, typer.Option("--manifest/--no-manifest", help="Write beside the output what made it.")
    ] = True


def layers_in(text: str) -> tuple[int, ...]:
    """Return the numbers in a list of layers. Raises UsageError for anything else."""
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError:
        raise UsageError(
            f"--layers {text} is not a list of numbers", "for example -1 or 0,-2,-1"
        ) from None


def chosen(vector: VectorOptions, length: LengthOptions, compute: ComputeOptions) -> EmbedOptions:
    """Return what the pipeline is told. Raises UsageError for what contradicts itself."""
    return record(
        EmbedOptions,
        vector,
        length,
        compute,
        pooling=vector.mode,
        words=vector.word_vectors,
        layers=layers_in(vector.layers),
        combine=vector.layer_combine,
    )
