"""`bertcli models`: the compiled models in the cache."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from bertcli.cli.display.messages import counted
from bertcli.cli.options.common import ConsoleOptions
from bertcli.cli.options.groups import MODEL
from bertcli.errors import UsageError
from bertcli.hub import DEFAULT_MODEL, MODEL_FILES, find_model

if TYPE_CHECKING:
    from bertcli.cli.display.console import Console
    from bertcli.inference.compiled_cache import CacheEntry


@dataclass(frozen=True)
class CacheOptions:
    """What to do, and with which model."""

    PANEL: ClassVar = MODEL

    action: Annotated[
        Literal["list", "prepare", "clean"],
        typer.Argument(
            help="list the compiled models, prepare (compile) one, or clean: remove all.",
        ),
    ] = "list"
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="The model to prepare: a folder, or a hub id."),
    ] = None


def models(cache: CacheOptions, messages: ConsoleOptions) -> None:
    """List, prepare or remove compiled models (--backend openvino).

    $ bertcli models
    $ bertcli models prepare sentence-transformers/all-MiniLM-L6-v2
    """
    console = messages.console()
    if cache.model is not None and cache.action != "prepare":
        raise UsageError(f"models {cache.action} takes no MODEL")
    from bertcli.inference.compiled_cache import clean, entries

    match cache.action:
        case "prepare":
            _prepare(cache.model or DEFAULT_MODEL, console)
        case "clean":
            console.note(f"removed {_size(clean())}")
        case _:
            found = entries()
            for entry in found:
                typer.echo(_line(entry.about, entry.size))
            console.note(_size(found))


def _prepare(model: str, console: "Console") -> None:
    folder = find_model(model, files=MODEL_FILES)
    from bertcli.embedding.embedder import Embedder
    from bertcli.embedding.options import EmbedOptions

    Embedder.open(folder, EmbedOptions(backend="openvino"), console)
    console.note(f"{model} is prepared")


def _size(found: list["CacheEntry"]) -> str:
    from bertcli.inference.compiled_cache import cache_folder

    total = sum(entry.size for entry in found) / 1e6
    return f"{counted(len(found), 'model', 'models')}, {total:,.0f} MB, in {cache_folder()}"


def _line(about: Any, size: int) -> str:
    if not about:
        return f"{size / 1e6:,.0f} MB  damaged; made anew when it is needed"
    reading = about["reading"]
    layers = ",".join(map(str, reading["layers"]))
    what = "pooler" if about["pooler"] else "first tokens" if reading["first"] else "all tokens"
    head = f"{about['kind']}, " if about["kind"] != "BertModel" else ""
    return f"{size / 1e6:,.0f} MB  {about['model']}  {head}layers {layers}, {what}"
