"""`bertcli models`: what is installed, cached or compiled on this machine."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ROWS, ConsoleOptions, Offline, Revision, RowOutput
from bertcli.cli.options.embed import ComputeType, LayerCombine, LayerList, PoolingMode, layers_in
from bertcli.cli.options.groups import MODEL, OptionGroup, argument, option
from bertcli.errors import OutputError, UsageError, counted
from bertcli.hub import DEFAULT_MODEL, MODEL_FILES, find_model

if TYPE_CHECKING:
    from bertcli.inference.compiled_cache import CacheEntry
    from bertcli.inspection.model_facts import ModelFacts

USES = ("embed", "fill-mask", "next-sentence", "classify", "tag", "answer", "choose")


class StoreOptions(OptionGroup):
    """What to do, and with which model."""

    PANEL: ClassVar = MODEL

    action: Annotated[
        Literal["list", "prepare", "clean"],
        argument(
            "list what is installed, cached or compiled; prepare: compile a model before its "
            "first use; clean: remove what was compiled."
        ),
    ] = "list"
    model: Annotated[
        str | None, argument("The model to prepare: a folder, or a hub id.", "MODEL")
    ] = None
    revision: Revision = None
    offline: Offline = False


class UseOptions(OptionGroup):
    """For which use a model is compiled."""

    PANEL: ClassVar = "Use (prepare)"

    command: Annotated[
        list[str] | None,
        option(
            f"{', '.join(USES)}; repeatable (default: embed, and the one that the model was "
            "trained for).",
            "COMMAND",
            "--for",
            complete=lambda incomplete: [one for one in USES if one.startswith(incomplete)],
        ),
    ] = None
    pooling: PoolingMode = "auto"
    layers: LayerList = "-1"
    layer_combine: LayerCombine = "mean"
    dtype: ComputeType = "auto"

    def __post_init__(self) -> None:
        for one in self.command or ():
            if one not in USES:
                raise UsageError(f"--for {one} runs no model", f"one of {', '.join(USES)}")


def models(
    store: StoreOptions, use: UseOptions, output: RowOutput, messages: ConsoleOptions
) -> None:
    """List models on this machine; compile one, or remove compiled ones.

    $ bertcli models
    $ bertcli models prepare sentence-transformers/all-MiniLM-L6-v2
    """
    console = messages.console()
    if store.model is not None and store.action != "prepare":
        raise UsageError(f"models {store.action} takes no MODEL")
    match store.action:
        case "prepare":
            _prepare(store, use, console)
        case "clean":
            from bertcli.inference.compiled_cache import clean

            console.note(f"removed {_size(clean())}")
        case _:
            _list(output)


def _list(output: RowOutput) -> None:
    from bertcli.files.tables import TableHeader
    from bertcli.inspection.model_facts import ModelFacts

    form, rows = output.form(ROWS), list(_rows())
    if form == "table":
        from bertcli.cli.display.tables import show_models

        show_models(rows)
        return
    names = ("model", "state", "use", "bytes", "path", *asdict(ModelFacts()))
    with output.open(form) as write:
        write(rows or [TableHeader(dict.fromkeys(names, ""))])


def _rows() -> Iterator[dict[str, Any]]:
    from bertcli.hub.finding import stored_models
    from bertcli.inference.compiled_cache import entries
    from bertcli.inspection.model_facts import ModelFacts, facts_of

    names, known = {}, {}
    for one in stored_models():
        facts = facts_of(one.folder) if one.folder else ModelFacts(problem="no files")
        if one.folder:
            names[str(one.folder)], known[str(one.folder)] = one.name, facts
        yield _row(one.name, one.state, "", one.size, one.path, facts)
    for entry in entries():
        folder = entry.about.get("model", "")
        there = isdir(folder)
        if folder not in known:
            known[folder] = facts_of(Path(folder)) if there else ModelFacts()
        lost = f"{folder}: folder not found" if folder else "damaged"
        facts = replace(known[folder], loads=there, problem="" if there else lost)
        use, name = _use(entry.about), names.get(folder, folder)
        yield _row(name, "compiled", use, entry.size, entry.path, facts)


def _row(
    model: str, state: str, use: str, size: int, path: Any, facts: "ModelFacts"
) -> dict[str, Any]:
    said = {"model": model, "state": state, "use": use, "bytes": size, "path": str(path)}
    return said | asdict(facts)


def _prepare(store: StoreOptions, use: UseOptions, console: Console) -> None:
    model = store.model or DEFAULT_MODEL
    folder = find_model(model, files=MODEL_FILES, revision=store.revision, offline=store.offline)
    from bertcli.embedding.embedder import Embedder
    from bertcli.embedding.options import EmbedOptions
    from bertcli.inference.early_start import expect
    from bertcli.tasks.head import COMMANDS, Head, Settings, command_of

    console = _Preparing(quiet=console.quiet, verbose=console.verbose)
    named = command_of(folder)
    usual = ["embed", named] if named else ["embed"]
    for command in use.command or usual:
        expect([command, *_said(store, use)])
        if command == "embed":
            options = EmbedOptions(
                "openvino",
                dtype=use.dtype,
                pooling=use.pooling,
                layers=layers_in(use.layers),
                combine=use.layer_combine,
            )
            Embedder.open(folder, options, console)
        else:
            Head.open(folder, COMMANDS[command], Settings("openvino", dtype=use.dtype), console)
        console.note(f"{model} is prepared for {command}")


def _said(store: StoreOptions, use: UseOptions) -> list[str]:
    """Return the options with which a command runs what is prepared."""
    names = ("pooling", "layers", "layer_combine", "dtype")
    said = {
        name: getattr(use, name) for name in names if getattr(use, name) != vars(UseOptions)[name]
    }
    said |= {name: value for name in ("model", "revision") if (value := getattr(store, name))}
    return [f"--{name.replace('_', '-')}={value}" for name, value in said.items()]


class _Preparing(Console):
    """A console for which it is an error that a compiled model cannot be kept."""

    def warn(self, message: str) -> None:
        from bertcli.inference.compiled_cache import UNKEPT

        if message.startswith(UNKEPT):
            why = message.partition("; ")[0]
            raise OutputError(why, "free disk space, or name another folder with BERTCLI_CACHE")
        super().warn(message)


def _size(found: list["CacheEntry"]) -> str:
    from bertcli.inference.cache_folder import cache_folder

    total = sum(entry.size for entry in found) / 1e6
    return f"{counted(len(found), 'model')}, {total:,.0f} MB, in {cache_folder()}"


def _use(about: Any) -> str:
    """Return what a compiled model is for."""
    if not about:
        return "damaged; compiled again when it is needed"
    if not {"kind", "reading", "pooler"} <= about.keys():
        return "of another version of bertcli"
    from bertcli.tasks.head import TASKS

    dtype = about.get("dtype", "float32")
    computed = "" if dtype == "float32" else f", {dtype}"
    if about["kind"] in TASKS:
        return TASKS[about["kind"]].command + computed
    reading = about["reading"]
    layers = ",".join(map(str, reading["layers"]))
    what = "pooler" if about["pooler"] else "first tokens" if reading["first"] else "all tokens"
    return f"embed, layers {layers}, {what}{computed}"
