"""Groups of options: records whose fields are the options of a command.

    class CutOptions(OptionGroup):
        PANEL: ClassVar = LAYOUT         # the heading above these options in --help
        max_length: Annotated[int | None, number("Tokens of a text.")] = None

    def tokenize(cut: CutOptions, messages: ConsoleOptions) -> None: ...

`command` spreads the groups of a function out for Typer, and `record` makes a record of the library
of them. Annotations of groups stay real objects, since Typer reads them at each start.
"""

import gc
import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

from bertcli.cli.display.help import HELP
from bertcli.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import Self

R = TypeVar("R", bound="DataclassInstance")

# Panels that several groups share.
MODEL, INPUT, OUTPUT = "Model", "Input", "Output"
LAYOUT, COMPUTE = "Length and special tokens", "Computation"


# Which options exclude or require others: what is said of them, and a hint. A rule holds for every
# command that has its options.
CHUNKS = "chunks are made of single texts, in their original characters"
RULES = {
    "--resume cannot be combined with --overwrite": "",
    "--extra cannot be combined with --frozen": "",
    "--whole cannot be combined with --input-format": "",
    "--pairs cannot be combined with TEXT, --input or --files-from": "",
    "QUERY cannot be combined with --input": "",
    "--margin requires --mine": "",
    "--mine requires --corpus": "",
    "--mine cannot be combined with --sparse or --token-vectors": "",
    "--attention cannot be combined with --tree, --tensors, --config, --tokenizer or --verify": "",
    "--stats cannot be combined with --count or --from-tokens": "",
    "--count cannot be combined with --from-tokens": "",
    "--sparse cannot be combined with --precision": "",
    "--token-vectors cannot be combined with --word-vectors": "",
    "--scores all cannot be combined with --top-k or --threshold": "",
    "--sparse cannot be combined with --token-vectors": "",
    "--per-file requires --count or --stats": "",
    "--ragged cannot be combined with --engine ray": "",
    "--ragged cannot be combined with --count or --stats": "",
    "--engine ray cannot be combined with --from-tokens, --count or --stats": "",
    "--from-tokens cannot be combined with --pair or --pairs": "",
    "--ray-address requires --engine ray": "",
    "--cpus-per-worker requires --engine ray": "",
    "--gpus-per-worker requires --engine ray": "",
    "--update cannot be combined with --engine ray": "",
    "--sparse cannot be combined with --engine ray": "",
    "--no-manifest cannot be combined with --engine ray": (
        "its manifests record which shards are done"
    ),
    "--on-truncate chunk cannot be combined with --engine ray": (
        "use bertcli chunk, and embed the chunks"
    ),
    "--dtype int8 cannot be combined with --to onnx": (
        "OpenVINO runs 8-bit graphs: use --to openvino"
    ),
    "--on-truncate chunk cannot be combined with --pair": CHUNKS,
    "--on-truncate chunk cannot be combined with --pairs": CHUNKS,
    "--on-truncate chunk cannot be combined with --pre-split": CHUNKS,
}
EXCLUDES, REQUIRES = " cannot be combined with ", " requires "
ARGUMENTS = {"TEXT": "texts", "QUERY": "queries"}


def obey(rules: Mapping[str, str], values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise UsageError for the first of the rules that the values of options break."""

    def is_given(option: str) -> bool:
        flag, _, choice = option.partition(" ")
        name = ARGUMENTS.get(flag, flag[2:].replace("-", "_"))
        if flag.startswith("--no-"):
            return values.get(name[3:]) is False
        value = values.get(name)
        if choice:
            return bool(value == choice)
        return value is not False and value != defaults.get(name)

    for rule, hint in rules.items():
        relation = EXCLUDES if EXCLUDES in rule else REQUIRES
        option, _, others = rule.partition(relation)
        if is_given(option):
            any_other = any(map(is_given, others.replace(" or ", ", ").split(", ")))
            if any_other is (relation == EXCLUDES):
                raise UsageError(rule, hint)


@dataclass(init=False, repr=False, eq=False)
class OptionGroup:
    """Options that belong together: a dataclass, with the methods below alone.

    To make methods for the fields of each of them would take ten times as long, at every start.
    """

    PANEL: ClassVar[str | None] = None  # the heading above them in --help

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)
        self.__post_init__()

    def changed(self, **values: Any) -> "Self":
        """Return this group with other values."""
        return type(self)(**{**vars(self), **values})

    def __post_init__(self) -> None:
        """Raise UsageError where options contradict each other."""


def option(
    about: str,
    metavar: str | None = None,
    *names: str,
    complete: Callable[..., Any] | None = None,
    panel: str | None = None,
    **more: Any,
) -> Any:
    """Return an option that takes what ``metavar`` stands for, or one of its choices."""
    more |= {"autocompletion": complete, "rich_help_panel": panel}
    return typer.Option(*names, metavar=metavar, help=about, **more)


def number(
    about: str,
    *names: str,
    low: float = 1,
    high: float | None = None,
    metavar: str = "N",
    **more: Any,
) -> Any:
    """Return an option that takes a number from ``low`` to ``high``."""
    return option(about, metavar, *names, min=low, max=high, **more)


def decimal(about: str, **more: Any) -> Any:
    """Return an option that takes a number with decimals, from 0."""
    return number(about, low=0, metavar="X", **more)


def argument(
    about: str, metavar: str | None = None, complete: Callable[..., Any] | None = None
) -> Any:
    """Return an argument."""
    return typer.Argument(metavar=metavar, help=about, autocompletion=complete)


def flag(name: str, about: str, *names: str, envvar: str | None = None) -> Any:
    """Return an option of these names alone."""
    return typer.Option(name, *names, help=about, envvar=envvar)


def command(
    function: Callable[..., None], help_options: Mapping[str, Any] = HELP
) -> Callable[..., None]:
    """Return the function with its parameters, groups of options all, spread out; and its help."""
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    spread = {name: [field.name for field in fields(group)] for name, group in hints.items()}

    @wraps(function)
    def run(**values: Any) -> None:
        gc.freeze()  # what was imported stays
        for name, value in values.items():
            if isinstance(value, float) and not isfinite(value):  # which no range keeps out
                raise UsageError(f"--{name.replace('_', '-')} {value} is not a finite number")
        obey(RULES, values, defaults)
        function(
            **{
                name: group(**{field: values[field] for field in spread[name]})
                for name, group in hints.items()
            }
        )

    parameters = [
        _parameter(field.name, _in_panel(field.type, group.PANEL), field.default)
        for group in hints.values()
        for field in fields(group)
    ]
    defaults = {parameter.name: parameter.default for parameter in parameters}
    parameters += [
        _parameter(name, Annotated[bool, option], False) for name, option in help_options.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _in_panel(annotation: Any, panel: str | None) -> Any:
    """Return the annotation of an option, in this panel unless it names another."""
    (option,) = annotation.__metadata__
    if panel is None or not isinstance(option, OptionInfo) or option.rich_help_panel is not None:
        return annotation
    placed = copy(option)
    placed.rich_help_panel = panel
    return Annotated[annotation.__origin__, placed]


def record(kind: type[R], *groups: "DataclassInstance", **values: Any) -> R:
    """Return a record of the library: each field has the value of the option of its name.

    ``values`` are the fields that no option has the name of, or that have another form there.
    """
    names = {field.name for field in fields(kind)}
    options = {
        field.name: getattr(group, field.name)
        for group in groups
        for field in fields(group)
        if field.name in names
    }
    return kind(**(options | values))
