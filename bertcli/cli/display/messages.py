"""Messages at the end of a run, made from its counts; empty when there is nothing to report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertcli.errors import counted
from bertcli.files.streams import size_on_disk
from bertcli.inference.hardware import cpu_flags

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.records.reader import Reader
    from bertcli.tokenizing.run import TokenCounts

LARGE = 5 << 20  # bytes of an input


def truncated(
    tally: TokenCounts, limit: int | None = None, advice: str = "", what: str = "texts"
) -> str:
    """Return what was truncated: "1 of 2 texts truncated to 8 tokens (3 dropped)"."""
    if not tally.truncated:
        return ""
    to = f" to {limit} tokens" if limit else ""
    dropped = f"{tally.cut:,}" if limit else counted(tally.cut, "token")
    return (
        f"{tally.truncated:,} of {tally.records:,} {what} truncated{to} ({dropped} dropped){advice}"
    )


def too_long(tally: TokenCounts, limit: int | None) -> str:
    """Return how many texts are longer than the model's limit, and how to truncate them."""
    if not tally.too_long:
        return ""
    return (
        f"{tally.too_long:,} of {tally.records:,} texts longer than the model's limit of {limit} "
        f"tokens (longest: {tally.longest}); --truncation true truncates them"
    )


def special_tokens(tally: TokenCounts) -> str:
    """Return how many special tokens were found in the texts, and how to prevent that."""
    if not tally.literals:
        return ""
    return (
        f"special tokens in the input were parsed as special tokens ({tally.literals:,}); "
        "--no-parse-special treats them as plain text"
    )


def empty(tally: TokenCounts) -> str:
    """Return how many texts were empty."""
    return f"{counted(tally.empty, 'text was', 'texts were')} empty" if tally.empty else ""


def pooling(embedder: Embedder) -> str:
    """Return how vectors are pooled, when the command does not say it."""
    options = embedder.options
    if options.words is not None:
        return f"one vector per word: {options.words} of its tokens"
    if options.sparse:
        return f"weights of terms: {options.pooling} over the tokens"
    if options.per_token:
        special = "included" if options.special_tokens else "left out"
        return f"one vector per token, special tokens {special}"
    where = embedder.sentence.found_in or "not specified by the model"
    modules = ", ".join(module.kind for module in embedder.modules)
    return f"pooling: {options.pooling} ({where}){f'; modules: {modules}' if modules else ''}"


def computing(embedder: Embedder) -> str:
    """Return where and how vectors are computed."""
    runtime = embedder.runtime
    where = ", ".join(map(str, runtime.devices))
    settled = ", ".join(
        f"{name} {value}"
        for name, value in embedder.chosen().items()
        if value not in (None, "") and name not in ("device", "threads", "modules")
    )
    return f"runs on {where}, threads {runtime.threads}; {settled}"


def bfloat16(embedder: Embedder, reader: Reader) -> str:
    """Return how a CPU with units for bfloat16 is faster on a large input than in float32."""
    facts = {"dtype": embedder.options.dtype, **embedder.runtime.facts}
    on_cpu = facts["backend"] == "openvino" and facts["dtype"] == "float32"
    size = size_on_disk(reader.source.paths) or 0
    if not on_cpu or size < LARGE or "amx_bf16" not in cpu_flags():
        return ""
    return "--dtype bfloat16 is about twice as fast on this CPU (cosines to float32 above 0.999)"


def skipped(records: int, where: str = "") -> str:
    """Return how many records were skipped."""
    return f"{counted(records, 'record was', 'records were')} skipped{where}" if records else ""


def unfit_ids(records: int) -> str:
    """Return how many records have an id of the wrong type."""
    ids = counted(records, "id is", "ids are")
    return f"{ids} neither text nor a number, and ignored; --id-field chooses another field"


def numbered_rows(records: int) -> str:
    """Return how many records without an id there are among others that have one."""
    return (
        f"{counted(records, 'record has', 'records have')} no id; the row number is used, "
        "which may equal the id of another record"
    )
