"""What a user may choose of how vectors are made, and what a model's folder says otherwise.

    EmbedOptions(pooling="mean+max")       # two poolings, concatenated
    EmbedOptions(pooling="none")           # a vector per token
    EmbedOptions(words="mean")             # a vector per word

Nothing here needs torch, so a wrong choice is told before a model is looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bertcli.embedding.sentence_config import MODES, Sentence
from bertcli.errors import OutputError, PrecisionError, UsageError
from bertcli.files.typed_json import whole_number
from bertcli.inference.compute import Compute
from bertcli.records.records import Record, Text, TextBlock

TERM_POOLINGS = ("max", "sum")  # of the weights of a term at the tokens
POOLINGS = tuple(MODES.values())  # these may be concatenated
ALONE = ("auto", "pooler", "none")
WORD_POOLINGS = ("first", "last", "mean", "max")  # of the tokens of a word

PRECISIONS = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
RANGED = ("int8", "uint8")  # precisions that need the range of every dimension
STREAMED = ("jsonl", "csv")
WITH_TERMS = ("jsonl", "npz", "parquet")  # formats of sparse vectors

LEAST = {  # of what is a whole number
    **dict.fromkeys(("top_terms", "dim", "max_length", "window", "threads", "batch_tokens"), 1),
    **dict.fromkeys(("stride", "overlap"), 0),
}


@dataclass(frozen=True)
class EmbedOptions(Compute):
    """What a user may choose. None, or auto, means what the model's folder says."""

    pooling: str = "auto"  # several are joined by "+", as in mean+max
    words: Literal["first", "last", "mean", "max"] | None = None
    sparse: bool = False  # weights of terms, by a masked language model
    top_terms: int | None = None  # of a text, those with the largest weights
    layers: tuple[int, ...] = (-1,)
    combine: Literal["mean", "sum", "concat", "stack"] = "mean"
    normalize: bool | None = None
    dim: int | None = None
    dim_last: bool = False  # whether dim is the folder's, which cuts vectors of length 1
    max_length: int | None = None
    on_truncate: Literal["warn", "error", "ignore", "window", "chunk"] = "warn"
    stride: int = 0
    overlap: int = 0  # of chunks
    at: Literal["token", "word", "sentence", "paragraph"] = "token"  # where chunks end
    prompt: str | None = None
    prompt_name: str | None = None
    special_tokens: bool = True
    parse_special: bool = True
    window: int = 4096

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not whole_number(least, 1 << 62).holds(value):
                option = name.replace("_", "-")
                raise UsageError(f"--{option} {value!r} is not a whole number from {least}")
        if self.on_truncate == "chunk" and self.several:
            kind = self.kind.removesuffix("s")
            raise UsageError(
                f"--on-truncate chunk makes one vector per chunk, not per {kind}",
                "use bertcli chunk, and embed the chunks",
            )
        if self.sparse:
            if self.pooling not in ("auto", *TERM_POOLINGS):
                raise UsageError(
                    f"--sparse cannot be combined with --pooling {self.pooling}",
                    f"one of {', '.join(TERM_POOLINGS)}, or auto: the model's",
                )
            others = {
                "--word-vectors": self.words,
                "--layers": self.layers != (-1,),
                "--normalize": self.normalize,
                "--dim": self.dim,
            }
            for name in filter(others.get, others):
                raise UsageError(f"--sparse cannot be combined with {name}")
            return
        for mode in () if self.pooling in ALONE else self.modes:
            if mode not in POOLINGS:
                alone = f"{mode} cannot be joined to others"
                raise UsageError(
                    f"--pooling {self.pooling}: {alone if mode in ALONE else f'unknown {mode!r}'}",
                    f"{', '.join(POOLINGS)}, also joined as in mean+max; or {', '.join(ALONE)}",
                )
        if self.top_terms is not None:
            raise UsageError("--top-terms requires --sparse")
        if self.pooling == "pooler" and len(self.layers) > 1:
            raise UsageError(
                "--pooling pooler takes one layer", "it was trained on the last one, --layers -1"
            )
        if self.words is None:
            return
        if self.words not in WORD_POOLINGS:
            poolings = ", ".join(WORD_POOLINGS)
            raise UsageError(f"unknown --word-vectors {self.words!r}", f"one of {poolings}")
        if self.pooling not in ("auto", "none"):
            raise UsageError(
                f"--word-vectors cannot be combined with --pooling {self.pooling}",
                f"--word-vectors {self.words} says how tokens become a word; leave out --pooling",
            )

    @property
    def per_token(self) -> bool:
        """Whether a text has a vector for each of its tokens or words, and not just one."""
        return self.pooling == "none" or self.words is not None

    @property
    def own_modules(self) -> bool:
        """Whether all modules of the model's folder are used, and not its encoder alone."""
        return self.pooling == "auto" and not self.per_token

    @property
    def several(self) -> bool:
        """Whether a text has any number of rows: vectors of its tokens, or weights of terms."""
        return self.per_token or self.sparse

    @property
    def kind(self) -> str:
        """What the rows are of that a text becomes: texts, words, tokens or terms."""
        if self.sparse:
            return "terms"
        return "words" if self.words else "tokens" if self.per_token else "texts"

    @property
    def modes(self) -> tuple[str, ...]:
        """The poolings whose vectors are concatenated, in this order."""
        return tuple(self.pooling.split("+"))


def check_static(options: EmbedOptions) -> None:
    """Raise UsageError for a choice that has no meaning for a table of token vectors."""
    impossible = {
        "--sparse": options.sparse,
        f"--pooling {options.pooling}": options.pooling not in ("auto", "mean", "none"),
        "--token-vectors or --word-vectors": options.per_token,
        "--layers": options.layers != (-1,),
        "--layer-combine": options.combine != "mean",
        f"--dtype {options.dtype}": options.dtype not in ("auto", "float32"),
        f"--device {options.device}": options.device not in ("auto", "cpu"),
    }
    for what in filter(impossible.get, impossible):
        raise UsageError(
            f"{what} is not possible: this model is a table of token vectors, not an encoder",
            "leave it out, or use a model with an encoder",
        )


def settled(options: EmbedOptions, sentence: Sentence) -> EmbedOptions:
    """Return the options with what the folder says in place of auto and None.

    What it says of the length and the dimensions of a vector is meant for those of whole texts.
    """
    prompt = sentence.prompt(options.prompt, options.prompt_name)
    if sentence.static:
        check_static(options)
        options = replace(options, special_tokens=False)
    if options.sparse:
        return replace(options, prompt=prompt)
    if options.per_token:
        return replace(options, pooling="none", normalize=bool(options.normalize), prompt=prompt)
    pooling = options.pooling
    if pooling == "auto":
        pooling = "+".join(sentence.pooling or ("mean",))
    return replace(
        options,
        pooling=pooling,
        normalize=sentence.normalize if options.normalize is None else options.normalize,
        dim=options.dim or sentence.dim,
        dim_last=options.dim is None and sentence.dim is not None and not options.normalize,
        prompt=prompt,
    )


def reads_first(options: EmbedOptions, sentence: Sentence) -> bool:
    """Say whether vectors are made of first tokens alone."""
    skips = bool(options.prompt) and not sentence.include_prompt
    return options.pooling in ("cls", "pooler") and not skips


def prepared(
    records: Sequence[Record], prompt: str, *, lower: bool, most: int | None = None
) -> Sequence[Record]:
    """Return records with the prompt before each text, all of it in lower case if asked for.

    Of strings as many characters are left as ``most`` says; words that came split are not cut.
    """
    if not (prompt or lower or most):
        return records

    def change(text: Text) -> Text:
        if isinstance(text, list):
            return [word.lower() for word in text] if lower else text
        return (text.lower() if lower else text)[:most]

    block, words = TextBlock.of(records), prompt.split()
    texts = [[*words, *text] if isinstance(text, list) else prompt + text for text in block.texts]
    pairs = block.pairs and [None if pair is None else change(pair) for pair in block.pairs]
    return replace(block, texts=list(map(change, texts)), pairs=pairs)


def refuse_format(form: str, options: EmbedOptions) -> None:
    """Raise UsageError for a format that does not hold what texts become."""
    if form == "csv" and options.per_token:
        raise UsageError(
            "csv holds one vector per row, and each text has several",
            "use -f jsonl, parquet or npy",
        )
    if options.sparse and form not in WITH_TERMS:
        raise UsageError(
            f"--sparse: weights of terms cannot be written as {form}",
            f"one of {', '.join(WITH_TERMS)}",
        )


def refuse_stream(form: str, precision: str) -> None:
    """Raise OutputError for what is made of all rows together."""
    if form not in STREAMED or precision in RANGED:
        what = form if form not in STREAMED else f"--precision {precision}"
        raise OutputError(f"{what} cannot be streamed", "use -o FILE")


def too_few(rows: int) -> PrecisionError:
    """Return the error for so few vectors that their dimensions have no ranges."""
    return PrecisionError(
        f"int8 and uint8 need the range of at least two vectors, not {rows}",
        "give more texts, or --precision float16",
    )
