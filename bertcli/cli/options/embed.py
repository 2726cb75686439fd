"""The options of `bertcli embed`: vectors, lengths, devices and files."""

from typing import Annotated, ClassVar, Literal

from bertcli.cli.options.common import At, Overlap, ParseSpecial, SpecialTokens
from bertcli.cli.options.completion import complete_device
from bertcli.cli.options.groups import (
    COMPUTE,
    LAYOUT,
    OUTPUT,
    OptionGroup,
    flag,
    number,
    option,
    record,
)
from bertcli.embedding.options import ALONE, POOLINGS, EmbedOptions
from bertcli.errors import UsageError


def _complete_pooling(incomplete: str) -> list[str]:
    before, plus, _ = incomplete.rpartition("+")
    names = [f"{before}{plus}{mode}" for mode in POOLINGS]
    return [name for name in (*names, *ALONE) if name.startswith(incomplete)]


PoolingMode = Annotated[
    str,
    option(
        "cls, mean, max, ... (auto: the model's, else mean). All: cls, mean, max, mean_sqrt_len, "
        "weightedmean and lasttoken; several, as in mean+max, are concatenated. Or pooler; none "
        "(--token-vectors).",
        "MODE",
        envvar="BERTCLI_POOLING",
        complete=_complete_pooling,
    ),
]
LayerList = Annotated[
    str,
    option(
        "-1 is the last layer, 0 the embedding output; layers above the highest one are not "
        "computed.",
        "L,...",
    ),
]
Prompt = Annotated[str | None, option("Text to put before each input text.", "TEXT")]
PromptName = Annotated[str | None, option("Name of a prompt that the model defines.", "NAME")]
LayerCombine = Annotated[
    Literal["mean", "sum", "concat", "stack"], option("How to combine several layers.", "METHOD")
]


class VectorOptions(OptionGroup):
    """How vectors are computed from hidden states."""

    PANEL: ClassVar = "Vectors"

    pooling: PoolingMode = "auto"
    token_vectors: Annotated[
        bool,
        flag(
            "--token-vectors",
            "One vector per token, special tokens included. For late-interaction models "
            "(ColBERT), vectors of documents, or of queries with --prompt-name query.",
        ),
    ] = False
    word_vectors: Annotated[
        Literal["first", "last", "mean", "max"] | None,
        option(
            "One vector per word: of its first or last token, or the mean or max of all.",
            "METHOD",
        ),
    ] = None
    sparse: Annotated[
        bool,
        flag(
            "--sparse",
            "Term weights instead (SPLADE, BGE-M3), as jsonl, npz (a scipy.sparse matrix) or "
            "parquet. --pooling max or sum (auto: the model's). Masked language models need "
            "torch. --prompt-name query: for models with a table of query weights.",
        ),
    ] = False
    top_terms: Annotated[
        int | None, number("Keep the N largest weights of each text (--sparse).")
    ] = None
    layers: LayerList = "-1"
    layer_combine: LayerCombine = "mean"
    normalize: Annotated[
        bool | None,
        flag(
            "--normalize/--no-normalize",
            "Scale vectors to length 1 (default: the model's). For tokens and words, off by "
            "default.",
        ),
    ] = None
    dim: Annotated[
        int | None, number("Keep the first N dimensions, before normalization (Matryoshka).")
    ] = None
    precision: Annotated[
        Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"],
        option("Number format of the output."),
    ] = "float32"
    prompt: Prompt = None
    prompt_name: PromptName = None

    @property
    def mode(self) -> str:
        """The pooling mode. Raises UsageError when it contradicts --token-vectors."""
        if self.sparse and self.token_vectors:
            raise UsageError("--sparse cannot be combined with --token-vectors")
        if not self.token_vectors:
            return self.pooling
        other = f"--word-vectors {self.word_vectors}" if self.word_vectors else ""
        if self.pooling not in ("auto", "none"):
            other = f"--pooling {self.pooling}"
        if other:
            raise UsageError(f"--token-vectors cannot be combined with {other}")
        return "none"


class LengthOptions(OptionGroup):
    """How long texts are handled."""

    PANEL: ClassVar = LAYOUT

    max_length: Annotated[
        int | None,
        number(
            "Truncate to N tokens (default: the model's limit).", low=2, envvar="BERTCLI_MAX_LENGTH"
        ),
    ] = None
    on_truncate: Annotated[
        Literal["warn", "error", "ignore", "window", "chunk"],
        option(
            "Handling of longer texts. window: encode the whole text in overlapping windows. "
            "chunk: one vector per chunk, as in `bertcli chunk`.",
            "ACTION",
            envvar="BERTCLI_ON_TRUNCATE",
        ),
    ] = "warn"
    stride: Annotated[int, number("Tokens shared by neighbouring windows.", low=0)] = 0
    overlap: Overlap = 0
    at: At = "token"
    special_tokens: SpecialTokens = True
    parse_special: ParseSpecial = True


ComputeType = Annotated[
    Literal["auto", "float32", "bfloat16", "float16", "int8"],
    option(
        "Compute precision. auto: float32. bfloat16: fastest on CPUs with AMX, nearly exact. int8: "
        "CPU only, faster, approximate.",
        envvar="BERTCLI_DTYPE",
    ),
]


class ComputeOptions(OptionGroup):
    """Backend, device, precision and memory."""

    PANEL: ClassVar = COMPUTE

    backend: Annotated[
        Literal["auto", "torch", "openvino"],
        option(
            "Inference engine. auto: OpenVINO on a CPU if installed, else torch (extra torch).",
            envvar="BERTCLI_BACKEND",
        ),
    ] = "auto"
    device: Annotated[
        str,
        option(
            "auto, cpu, cuda, cuda:N, mps or xpu. auto: the best available; cuda:0,cuda:1 or "
            "cuda:all: one process per device.",
            "NAME",
            envvar="BERTCLI_DEVICE",
            complete=complete_device,
        ),
    ] = "auto"
    dtype: ComputeType = "auto"
    threads: Annotated[
        int | None,
        number("CPU threads, over all processes (default: all cores).", envvar="BERTCLI_THREADS"),
    ] = None
    batch_tokens: Annotated[
        int | None,
        number("Tokens per batch; halved when memory runs out.", envvar="BERTCLI_BATCH_TOKENS"),
    ] = None
    window: Annotated[
        int, number("Maximum number of records that are sorted by length together.")
    ] = 4096


class VectorFileOptions(OptionGroup):
    """How files of vectors are written."""

    PANEL: ClassVar = OUTPUT

    resume: Annotated[bool, flag("--resume", "Resume an interrupted run.")] = False
    update: Annotated[
        bool,
        flag(
            "--update",
            "Update an output to a changed input: embed only new and changed texts. Resumes an "
            "interrupted update.",
        ),
    ] = False
    manifest: Annotated[
        bool, flag("--manifest/--no-manifest", "Write a manifest next to the output.")
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
    """Return the options of the library. Raises UsageError for contradictions."""
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
