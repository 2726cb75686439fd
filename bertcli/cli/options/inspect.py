"""The options of `bertcli inspect`, in groups."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from bertcli.cli.options.common import ModelOptions
from bertcli.cli.options.completion import complete_model
from bertcli.cli.options.groups import OptionGroup, argument, flag, option
from bertcli.errors import ModelError, UsageError
from bertcli.hub import DEFAULT_MODEL, MODEL_FILES, ModelFolder
from bertcli.inspection import FILE_SUFFIXES
from bertcli.plots.picture import DRAWN, PICTURES

# A pattern in place of a name: a model without a tokenizer can be inspected all the same.
FILES = tuple("vocab.tx[t]" if name == "vocab.txt" else name for name in MODEL_FILES)


class TargetOptions(OptionGroup):
    """The model or file to inspect."""

    target: Annotated[
        str | None,
        argument(
            "Folder, hub id, or file of vectors: .npy .npz .safetensors .jsonl .csv .parquet "
            "(default: --model).",
            "[MODEL|FILE]",
            complete=complete_model,
        ),
    ] = None

    def file(self) -> Path | None:
        """Return the file to inspect; None when it is a model."""
        if self.target is None or os.path.isdir(os.path.expanduser(self.target)):
            return None
        path = Path(os.path.expanduser(self.target))
        named = self.target.lower().endswith(FILE_SUFFIXES)
        return path if named or os.path.isfile(path) else None

    def folder(self, model: ModelOptions) -> ModelFolder:
        """Return the folder of the model; a path to a folder is used whatever it contains."""
        usual = (DEFAULT_MODEL, os.environ.get("BERTCLI_MODEL"))
        if self.target is not None and model.model not in (self.target, *usual):
            raise UsageError(f"two models: {self.target} and --model {model.model}", "give one")
        name = self.target if self.target is not None else model.model
        place = os.path.expanduser(name)
        if os.path.islink(place) and not os.path.exists(place):
            raise ModelError(f"{name}: broken or circular symlink")
        return model.changed(model=name).folder(() if os.path.isdir(place) else FILES)


class ViewOptions(OptionGroup):
    """The parts to show."""

    PANEL: ClassVar = "Other views"

    json: Annotated[bool, flag("--json", "Print everything as one JSON object.")] = False
    tree: Annotated[bool, flag("--tree", "Show the modules, with shapes and parameters.")] = False
    tensors: Annotated[
        bool, flag("--tensors", "Show name, shape, type and bytes of each tensor.")
    ] = False
    config: Annotated[bool, flag("--config", "Show the config.")] = False
    tokenizer: Annotated[bool, flag("--tokenizer", "Show the tokenizer.")] = False
    verify: Annotated[
        bool, flag("--verify", "Load everything; check hashes, and for NaN and infinity.")
    ] = False

    def some(self) -> bool:
        """Return whether a part was requested by name."""
        return self.tree or self.tensors or self.config or self.tokenizer or self.verify


class AttentionOptions(OptionGroup):
    """The attention maps to show, and where."""

    PANEL: ClassVar = "Attention"

    attention: Annotated[
        list[str] | None,
        option(
            "Show the attention maps of a text; repeatable. On a terminal: the last layer, mean "
            "over its heads.",
            "TEXT",
        ),
    ] = None
    pair: Annotated[str | None, option("Second sentence.")] = None
    extra: Annotated[
        list[str] | None,
        option(
            "For models with extra embeddings: ids for the words of the text, one per word or "
            "token, or one number for all; repeatable.",
            "NAME=IDS",
        ),
    ] = None
    layers: Annotated[
        str | None,
        option("Layers, counted from 0 as in encoder.layer.0; -1 is the last; all.", "L,..."),
    ] = None
    heads: Annotated[
        str | None,
        option(
            "Heads, counted from 0; all; or mean. On a terminal, several heads are averaged.",
            "H,...",
        ),
    ] = None
    output: Annotated[
        Path | None,
        option(
            "Output file: an interactive page (.html), a figure (.svg, .png, .pdf), or the exact "
            "numbers (.npz, .json).",
            "PATH",
            "--output",
            "-o",
        ),
    ] = None
    overwrite: Annotated[bool, flag("--overwrite", "Replace an existing file.")] = False

    def check(self, views: ViewOptions, file: Path | None) -> None:
        """Refuse contradicting options, before anything is read."""
        dependent = (self.pair, self.extra, self.layers, self.heads, self.output)
        if self.attention and len(self.attention) > 1:
            self._check_several()
        if self.attention is None and any(value is not None for value in dependent):
            raise UsageError(
                "--pair, --extra, --layers, --heads and --output require --attention TEXT"
            )
        if self.attention is not None and views.some():
            raise UsageError("--attention cannot be combined with other views")
        if self.output is not None and self.form() not in PICTURES:
            suffixes = ", ".join(f".{name}" for name in PICTURES)
            raise UsageError(
                f"{self.output}: unknown format for --attention", f"-o can end in {suffixes}"
            )
        if self.attention is not None and file:
            raise UsageError(
                f"{file} is a file, and has no attention (--attention)", "name a model"
            )

    def _check_several(self) -> None:
        for name, value in (("pair", self.pair), ("extra", self.extra)):
            if value is not None:
                raise UsageError(f"--{name} needs exactly one --attention TEXT")
        if self.form() in DRAWN:
            raise UsageError(
                f"{self.output}: a figure shows one text (--attention)",
                "-o FILE.html, .json and .npz hold several",
            )

    def extra_ids(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Return the ids of each field; UsageError for an embedding that the model lacks."""
        ids_of_fields = {}
        for text in self.extra or ():
            name, _, ids = text.partition("=")
            if name not in fields or not ids:
                names = ", ".join(fields) or "none"
                raise UsageError(
                    f"--extra {text}: NAME=IDS expected, NAME an extra embedding of the model",
                    f"extra embeddings: {names}",
                )
            ids_of_fields[fields[name]] = ids
        return ids_of_fields

    def form(self) -> str:
        """Return the format that the name of the output asks for."""
        return self.output.suffix.lower()[1:] if self.output else ""

    def last_layer_only(self, json: bool) -> bool:
        """Whether only the last layer is shown: in figures and on the terminal, unless chosen."""
        return self.layers is None and (self.form() in DRAWN or not (self.form() or json))
