"""Groups of options: the options of a command, of which it makes records of the library.

    class CutOptions(OptionGroup, panel=LAYOUT, of=Layout):
        max_length = number("Tokens of a text.")     # its type and default are those in Layout
        check: bool = flag("Look at all of them.")

    def tokenize(cut: CutOptions, messages: ConsoleOptions) -> None: ...

`command` spreads the groups of a function out for Typer, and `record` makes a record of the library
of them. Annotations of groups stay real objects, since Typer reads them at each start.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import MISSING, fields
from functools import wraps
from math import isfinite
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    get_args,
    get_type_hints,
)

import typer
from typer.models import OptionInfo

from bertcli.cli.display.console import say
from bertcli.cli.display.help import HELP
from bertcli.errors import LOG, UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import Self

R = TypeVar("R", bound="DataclassInstance")

# Panels that several groups share.
MODEL, INPUT, OUTPUT = "Model", "Input", "Output"
LAYOUT, COMPUTE = "Length and special tokens", "Computation"


# Which options exclude or require others: the message, and a hint behind a semicolon. A rule holds
# for every command that has its options.
RULES = (
    "--resume cannot be combined with --overwrite",
    "--extra cannot be combined with --frozen",
    "--whole cannot be combined with --input-format",
    "--pairs cannot be combined with TEXT, --input or --files-from",
    "QUERY cannot be combined with --input",
    "--files-from cannot be combined with TEXT",
    "FILE cannot be combined with --input",
    "FILE... cannot be combined with --input",
    "--margin requires --mine",
    "--words requires --corpus",
    "--hybrid cannot be combined with --sparse, --token-vectors, --mine or --threshold; "
    "scores of --hybrid are sums of reciprocal ranks",
    "--hybrid requires --corpus or --index",
    "--rank-constant requires --hybrid",
    "--lexical-weight requires --hybrid",
    "--lexical cannot be combined with --hybrid, --vectors, --sparse, --token-vectors or --mine; "
    "it compares terms, not vectors",
    "--lexical cannot be combined with --threshold; its scores have no scale",
    "--lexical requires --corpus or --index",
    "--rerank cannot be combined with --mine",
    "--rerank-top requires --rerank",
    "--index cannot be combined with --vectors, --sparse, --token-vectors or --mine; "
    "it holds one vector per text or chunk",
    "--mine requires --corpus",
    "--mine cannot be combined with --format table",
    "--mine cannot be combined with QUERY; give pairs with --input FILE",
    "--mine cannot be combined with --sparse or --token-vectors",
    "--attention cannot be combined with --tree, --tensors, --config, --tokenizer or --verify",
    "--stats cannot be combined with --count or --from-tokens",
    "--count cannot be combined with --from-tokens",
    "--sparse cannot be combined with --precision",
    "--scores all cannot be combined with --top-k or --threshold",
    "--sparse cannot be combined with --token-vectors",
    "--per-file requires --count or --stats",
    "--per-file cannot be combined with TEXT; give files with -i",
    "--queries requires --qrels",
    "--corpus requires --qrels",
    "--qrels requires --queries",
    "--qrels requires --corpus",
    "--qrels cannot be combined with FILE or --input",
    "--ragged cannot be combined with --engine ray",
    "--ragged cannot be combined with --count or --stats",
    "--engine ray cannot be combined with --from-tokens, --count or --stats",
    "--from-tokens cannot be combined with --pair or --pairs",
    "--ray-address requires --engine ray",
    "--cpus-per-worker requires --engine ray",
    "--gpus-per-worker requires --engine ray",
    "--update cannot be combined with --engine ray",
    "--update cannot be combined with --overwrite or --no-manifest",
    "--update cannot be combined with --precision int8 or --precision uint8; "
    "their ranges are those of all texts together: use float32, float16 or binary",
    "--update cannot be combined with --token-vectors, --word-vectors, --pooling none or --sparse; "
    "it needs one vector per text or chunk",
    "--sparse cannot be combined with --engine ray",
    "--no-manifest cannot be combined with --engine ray; "
    "its manifests record which shards are done",
    "--on-truncate chunk cannot be combined with --engine ray; "
    "use bertcli chunk, and embed the chunks",
    "--ragged cannot be combined with --padding",
    "--pair requires --attention",
    "--extra requires --attention",
    "--layers requires --attention",
    "--heads requires --attention",
    "--output requires --attention",
    "--keep-fields has no effect with --stats",
    "--id-field has no effect with --stats",
    "--stride has no effect without --overflowing",
    "--stride has no effect without --on-truncate window",
    "--overlap has no effect without --on-truncate chunk",
    "--dtype int8 cannot be combined with --to onnx; OpenVINO runs 8-bit graphs: use --to openvino",
    "--on-truncate chunk cannot be combined with --pair, --pairs or --pre-split; "
    "chunks are made of single texts, in their original characters",
)
RELATION = re.compile("( cannot be combined with | requires | has no effect with(?:out)? )")
ARGUMENTS = {"FILE": "file", "FILE...": "files", "TEXT": "texts", "QUERY": "queries"}


def obey(rules: Iterable[str], values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise UsageError for the first of the rules that the values of options break, or warn of it.

    What an option requires must be one that the command has.
    """

    def name_of(option: str) -> str:
        flag = option.partition(" ")[0]
        return ARGUMENTS.get(flag, re.sub("^--(no-)?", "", flag).replace("-", "_"))

    def is_given(option: str) -> bool:
        name, choice = name_of(option), option.partition(" ")[2]
        value = values.get(name)
        if option.startswith("--no-"):
            return value is False
        if choice:
            return bool(value == choice)
        return value is not False and value != defaults.get(name)

    for entry in rules:
        rule, _, hint = entry.partition("; ")
        option, relation, others = RELATION.split(rule)
        if is_given(option):
            names = others.replace(" or ", ", ").split(", ")
            if "with " in relation:
                broken = any(map(is_given, names))
            else:
                broken = any(name_of(name) in values for name in names) and not any(
                    map(is_given, names)
                )
            if broken and "effect" not in relation:
                raise UsageError(rule, hint)
            if broken and not values.get("quiet"):
                say("warning", rule)


class Declaration(NamedTuple):
    """An option: what Typer is told of it, and its type and default where no record has them."""

    info: Any
    kind: Any = str | None
    default: Any = MISSING  # None where the type allows it, else the option is required


class OptionGroup:
    """Options that belong together: class attributes, in the order of --help.

    ``panel`` is the heading above them. An option has the type of its annotation, or that of the
    field of its name in the record ``of`` the library, whose default it has then.
    """

    PANEL: ClassVar[str | None] = None
    OPTIONS: ClassVar[dict[str, inspect.Parameter]] = {}
    command_options: Mapping[str, Any] = {}  # all options of the command

    def __init_subclass__(cls, panel: str | None = None, of: Any = None) -> None:
        cls.PANEL = panel or cls.PANEL
        own = inspect.get_annotations(cls)
        kinds = (get_type_hints(of) if of else {}) | own
        usual = {x.name: x.default for x in fields(of) if x.name not in own} if of else {}
        cls.OPTIONS = cls.OPTIONS | {
            name: _parameter(
                name,
                copy(declared.info),
                kinds.get(name, declared.kind),
                usual.get(name, MISSING) if declared.default is MISSING else declared.default,
                cls.PANEL,
            )
            for name, declared in vars(cls).items()
            if isinstance(declared, Declaration)
        }

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)
        self.__post_init__()

    def changed(self, **values: Any) -> "Self":
        """Return this group with other values."""
        return type(self)(**{**vars(self), **values})

    def __post_init__(self) -> None:
        """Raise UsageError where options contradict each other."""


def _parameter(
    name: str, info: Any, kind: Any, default: Any, panel: str | None
) -> inspect.Parameter:
    """Return the parameter of a command that Typer makes an option of."""
    if default is MISSING:
        default = None if NoneType in get_args(kind) else inspect.Parameter.empty
    if default is False and not info.param_decls:
        info.param_decls = (f"--{name.replace('_', '-')}",)  # without --no-
    if isinstance(info, OptionInfo):
        info.rich_help_panel = info.rich_help_panel or panel
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, info])


def option(
    about: str,
    metavar: str | None = None,
    *names: str,
    default: Any = MISSING,
    kind: Any = str | None,
    complete: Callable[..., Any] | None = None,
    panel: str | None = None,
    **more: Any,
) -> Any:
    """Return an option that takes what ``metavar`` stands for, or one of its choices."""
    more |= {"autocompletion": complete, "rich_help_panel": panel}
    more.setdefault("case_sensitive", False)  # `--padding True` is what Python writes
    info = typer.Option(..., *names, metavar=metavar, help=about, **more)
    return Declaration(info, kind, default)


def number(
    about: str,
    *names: str,
    low: float = 1,
    high: float | None = None,
    metavar: str = "N",
    kind: Any = int | None,
    **more: Any,
) -> Any:
    """Return an option that takes a number from ``low`` to ``high``."""
    return option(about, metavar, *names, kind=kind, min=low, max=high, **more)


def decimal(about: str, **more: Any) -> Any:
    """Return an option that takes a number with decimals, from 0."""
    return number(about, low=0, metavar="X", kind=float | None, **more)


def argument(
    about: str, metavar: str | None = None, complete: Callable[..., Any] | None = None
) -> Any:
    """Return an argument."""
    return Declaration(typer.Argument(metavar=metavar, help=about, autocompletion=complete))


def flag(about: str, *names: str, default: bool | None = False, **more: Any) -> Any:
    """Return an option without a value; where it is not off by default, --no- turns it off."""
    return option(about, None, *names, default=default, kind=bool | None, **more)


def command(
    function: Callable[..., None], help_options: Mapping[str, Any] = HELP
) -> Callable[..., None]:
    """Return the function with its parameters, groups of options all, spread out; and its help."""
    hints = get_type_hints(function)
    hints.pop("return", None)
    parameters = {k: v for group in hints.values() for k, v in group.OPTIONS.items()}
    defaults = {name: parameter.default for name, parameter in parameters.items()}

    @wraps(function)
    def run(**values: Any) -> None:
        for name, value in values.items():
            if isinstance(value, float) and not isfinite(value):  # which no range keeps out
                raise UsageError(f"--{name.replace('_', '-')} {value} is not a finite number")
        obey(RULES, values, defaults)
        groups = {
            name: group(**{field: values[field] for field in group.OPTIONS})
            for name, group in hints.items()
        }
        for group in groups.values():
            group.command_options = values
        try:
            function(**groups)
        finally:
            vars(LOG).clear()

    for name, info in help_options.items():
        parameters[name] = _parameter(name, info, bool, False, None)
    run.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameters[name].annotation for name in parameters}
    return run


def record(kind: type[R], *groups: OptionGroup, **values: Any) -> R:
    """Return a record of the library: each field has the value of the option of its name.

    ``values`` are the fields that no option has the name of, or that have another form there.
    """
    options = {name: value for group in groups for name, value in vars(group).items()}
    named = {field.name: options[field.name] for field in fields(kind) if field.name in options}
    return kind(**(named | values))
