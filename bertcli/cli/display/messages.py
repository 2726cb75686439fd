"""What is said at the end of a run, from its counts; a message is empty with nothing to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.tokenizing.run import TokenCounts


def counted(number: int, one: str, several: str) -> str:
    """Return a number and what there is so many of: "1 text", "2 texts"."""
    return f"{number:,} {one if number == 1 else several}"


def truncated(tally: TokenCounts, limit: int | None = None, advice: str = "") -> str:
    """Return what was cut: "1 of 2 texts was cut to 8 tokens; 3 tokens are gone"."""
    if not tally.truncated:
        return ""
    texts = counted(tally.records, "text", "texts")
    was = "was" if tally.truncated == 1 else "were"
    to = f" to {limit} tokens" if limit else ""
    gone = counted(tally.cut, "token is", "tokens are")
    return f"{tally.truncated:,} of {texts} {was} cut{to}; {gone} gone{advice}"


def too_long(tally: TokenCounts, limit: int | None) -> str:
    """Return how many texts are longer than the model's limit, and how to cut them."""
    if not tally.too_long:
        return ""
    texts = counted(tally.records, "text", "texts")
    are = "is" if tally.too_long == 1 else "are"
    return (
        f"{tally.too_long} of {texts} {are} longer than the model's limit of "
        f"{limit} tokens (longest: {tally.longest}); --truncation true cuts them"
    )


def special_tokens(tally: TokenCounts) -> str:
    """Return that special tokens stood in the text, and what makes them plain text."""
    if not tally.literals:
        return ""
    stood = counted(tally.literals, "special token", "special tokens")
    return (
        f"{stood} stood in the text and {'was' if tally.literals == 1 else 'were'} taken as such; "
        "--no-parse-special makes them plain text"
    )


def empty(tally: TokenCounts) -> str:
    """Return how many texts were empty."""
    return f"{counted(tally.empty, 'text was', 'texts were')} empty" if tally.empty else ""


def pooling(embedder: Embedder) -> str:
    """Return what the vectors are of, where the command does not say it."""
    options = embedder.options
    if options.words is not None:
        return f"a vector a word, of its tokens: {options.words}"
    if options.per_token:
        special = "included" if options.special_tokens else "left out"
        return f"a vector a token, special tokens {special}"
    where = embedder.sentence.found_in or "no pooling in the model's folder"
    return f"pooling: {options.pooling} ({where})"


def skipped(records: int, where: str = "") -> str:
    """Return how many records were skipped."""
    return f"{counted(records, 'record was', 'records were')} skipped{where}" if records else ""


def unfit_ids(records: int) -> str:
    """Return how many records have an id that cannot be one."""
    values = counted(records, "value of id is", "values of id are")
    return f"{values} neither text nor a number, so ignored; --id-field names another field"


def numbered_rows(records: int) -> str:
    """Return how many records have the number of their row beside others that have ids."""
    return (
        f"{counted(records, 'record has', 'records have')} no id and the row number in its place, "
        "which may equal the id of another record"
    )
