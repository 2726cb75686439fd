"""Groups of options: the parameters of commands, from which they make records of the library.

    class CutOptions(OptionGroup, panel=LAYOUT, of=Layout):
        max_length = number("Tokens of a text.")     # type and default as in Layout
        check: bool = flag("Look at all of them.")

    def tokenize(cut: CutOptions, messages: ConsoleOptions) -> None: ...

`command` makes a command for Typer from a function of groups, `record` a record of the library from
groups. Annotations of groups are objects, not strings, because Typer reads them at each start.
"""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
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

from bertcli.cli.display.help import HELP
from bertcli.cli.options.rules import RULES, check_rules
from bertcli.errors import LOG, UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import Self

R = TypeVar("R", bound="DataclassInstance")

# Panels that several groups share.
MODEL, INPUT, OUTPUT = "Model", "Input", "Output"
LAYOUT, COMPUTE = "Length and special tokens", "Computation"


class Declaration(NamedTuple):
    """An option as a class attribute: Typer's description, and its annotation and default.

    An annotation or a default of the record that the group is made ``of`` replaces these.
    """

    info: Any
    annotation: Any = str | None
    default: Any = MISSING  # then None if the annotation allows it; otherwise it is required


class OptionGroup:
    """Options that belong together: class attributes, in the order of --help.

    ``panel`` is the heading above them. With ``of``, a record of the library, options take the
    types and the defaults of its fields of the same name, unless the group annotates them.
    """

    PANEL: ClassVar[str | None] = None
    OPTIONS: ClassVar[dict[str, inspect.Parameter]] = {}
    command_options: Mapping[str, Any] = {}  # all options of the command

    def __init_subclass__(cls, panel: str | None = None, of: Any = None) -> None:
        cls.PANEL = panel or cls.PANEL
        group_annotations = inspect.get_annotations(cls)
        annotations, defaults = _types_and_defaults(of) if of else ({}, {})
        annotations |= group_annotations
        options = dict(cls.OPTIONS)
        for name, declaration in vars(cls).items():
            if isinstance(declaration, Declaration):
                default = declaration.default
                if default is MISSING and name not in group_annotations:
                    default = defaults.get(name, MISSING)
                annotation = annotations.get(name, declaration.annotation)
                info = copy(declaration.info)
                options[name] = _parameter(name, info, annotation, default, cls.PANEL)
        cls.OPTIONS = options

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)
        self.__post_init__()

    def changed(self, **values: Any) -> "Self":
        """Return a copy of this group with other values."""
        return type(self)(**(vars(self) | values))

    def __post_init__(self) -> None:
        """Raise UsageError if options contradict each other."""


def _types_and_defaults(of: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the types and the defaults of a record's fields, and of those of records in it."""
    types = get_type_hints(of)
    defaults = {field.name: field.default for field in fields(of)}
    for annotation in [*types.values()]:
        if is_dataclass(annotation):
            inner_types, inner_defaults = _types_and_defaults(annotation)
            types = inner_types | types
            defaults = inner_defaults | defaults
    return types, defaults


def _parameter(
    name: str, info: Any, annotation: Any, default: Any, panel: str | None
) -> inspect.Parameter:
    """Return the parameter of a command that Typer turns into an option."""
    if default is MISSING:
        is_optional = NoneType in get_args(annotation)
        default = None if is_optional else inspect.Parameter.empty
    if default is False and not info.param_decls:
        info.param_decls = (f"--{name.replace('_', '-')}",)  # without --no-
    if isinstance(info, OptionInfo):
        info.rich_help_panel = info.rich_help_panel or panel
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, info],
    )


def option(
    about: str,
    metavar: str | None = None,
    *names: str,
    default: Any = MISSING,
    annotation: Any = str | None,
    complete: Callable[..., Any] | None = None,
    panel: str | None = None,
    **more: Any,
) -> Any:
    """Return an option with a value: what ``metavar`` names, or one of the choices of its type."""
    more |= {"autocompletion": complete, "rich_help_panel": panel}
    more.setdefault("case_sensitive", False)  # `--padding True` is what Python writes
    info = typer.Option(..., *names, metavar=metavar, help=about, **more)
    return Declaration(info, annotation, default)


def number(
    about: str,
    *names: str,
    low: float = 1,
    high: float | None = None,
    metavar: str = "N",
    annotation: Any = int | None,
    **more: Any,
) -> Any:
    """Return an option that takes a number from ``low`` to ``high``."""
    return option(about, metavar, *names, annotation=annotation, min=low, max=high, **more)


def decimal(about: str, **more: Any) -> Any:
    """Return an option that takes a number with decimals, from 0."""
    return number(about, low=0, metavar="X", annotation=float | None, **more)


def argument(
    about: str, metavar: str | None = None, complete: Callable[..., Any] | None = None
) -> Any:
    """Return an argument."""
    return Declaration(typer.Argument(metavar=metavar, help=about, autocompletion=complete))


def flag(about: str, *names: str, default: bool | None = False, **more: Any) -> Any:
    """Return an option without a value. --no- turns it off if it is not off by default."""
    return option(about, None, *names, default=default, annotation=bool | None, **more)


def command(
    function: Callable[..., None], help_options: Mapping[str, Any] = HELP
) -> Callable[..., None]:
    """Return a function of option groups as a command for Typer, with all options as parameters.

    ``help_options`` are the options that show its help. Raises UsageError for values that the rules
    of options exclude, and for numbers that are not finite.
    """
    groups = get_type_hints(function)
    groups.pop("return", None)
    parameters: dict[str, inspect.Parameter] = {}
    for group in groups.values():
        parameters |= group.OPTIONS
    defaults = {name: parameter.default for name, parameter in parameters.items()}

    @wraps(function)
    def run(**values: Any) -> None:
        for name, value in values.items():
            if isinstance(value, float) and not isfinite(value):  # NaN is in every range
                raise UsageError(f"--{name.replace('_', '-')} {value} is not a finite number")
        check_rules(RULES, values, defaults)
        arguments = {}
        for name, group in groups.items():
            arguments[name] = group(**{option: values[option] for option in group.OPTIONS})
        for argument in arguments.values():
            argument.command_options = values
        try:
            function(**arguments)
        finally:
            vars(LOG).clear()

    for name, info in help_options.items():
        parameters[name] = _parameter(name, info, bool, False, None)
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameters[name].annotation for name in parameters}
    return run


def record(record_class: type[R], *groups: OptionGroup, **values: Any) -> R:
    """Return a record of the library whose fields have the values of the options of their names.

    ``values`` are the fields without an option of their name, or with another value.
    """
    options: dict[str, Any] = {}
    for group in groups:
        options |= vars(group)
    field_values = {
        field.name: options[field.name] for field in fields(record_class) if field.name in options
    }
    return record_class(**(field_values | values))
