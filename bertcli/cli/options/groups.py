"""Option groups: classes that declare the options of commands and fill the library's records.

    class LengthOptions(OptionGroup, panel=LAYOUT, record_class=Layout):
        max_length = number("Maximum tokens of a text.")     # type and default as in Layout
        verify: bool = flag("Check all texts.")

    def tokenize(length: LengthOptions, console: ConsoleOptions) -> None: ...

`command` turns a function of option groups into a Typer command. `record` fills a record of the
library from option groups. Annotations of group attributes are evaluated, not strings, because
Typer reads them at every start.
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

# Help panels shared by several groups.
MODEL = "Model"
INPUT = "Input"
OUTPUT = "Output"
LAYOUT = "Length and special tokens"
COMPUTE = "Computation"


class Declaration(NamedTuple):
    """An option as a class attribute: Typer's description, the type and the default.

    If the group has a ``record_class``, the type and default of its field replace these.
    """

    parameter_info: Any
    annotation: Any = str | None
    default: Any = MISSING  # None if the annotation allows it, else the option is required


class OptionGroup:
    """Base class of option groups. Its class attributes are options, in the order of --help.

    ``panel`` is the heading of the group in the help. Options take the type and default of the
    field of the same name in ``record_class``, a dataclass of the library, unless the group
    annotates them.
    """

    PANEL: ClassVar[str | None] = None
    OPTIONS: ClassVar[dict[str, inspect.Parameter]] = {}
    command_options: Mapping[str, Any] = {}  # all options of the command, of every group

    def __init_subclass__(cls, panel: str | None = None, record_class: Any = None) -> None:
        cls.PANEL = panel or cls.PANEL
        group_annotations = inspect.get_annotations(cls)
        annotations, defaults = _types_and_defaults(record_class) if record_class else ({}, {})
        annotations |= group_annotations
        options = dict(cls.OPTIONS)
        for name, declaration in vars(cls).items():
            if isinstance(declaration, Declaration):
                default = declaration.default
                if default is MISSING and name not in group_annotations:
                    default = defaults.get(name, MISSING)
                annotation = annotations.get(name, declaration.annotation)
                parameter_info = copy(declaration.parameter_info)
                options[name] = _parameter(name, parameter_info, annotation, default, cls.PANEL)
        cls.OPTIONS = options

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)
        self.__post_init__()

    def receive_command_options(self, values: Mapping[str, Any]) -> None:
        """Receive the options of all groups of the command."""
        self.command_options = values

    def changed(self, **values: Any) -> "Self":
        """Return a copy of this group with other values."""
        return type(self)(**(vars(self) | values))

    def __post_init__(self) -> None:
        """Raise UsageError if options contradict each other."""


def _types_and_defaults(record_class: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the types and defaults of a record's fields, including those of nested records."""
    types = get_type_hints(record_class)
    defaults = {field.name: field.default for field in fields(record_class)}
    for annotation in list(types.values()):
        if is_dataclass(annotation):
            inner_types, inner_defaults = _types_and_defaults(annotation)
            types = inner_types | types
            defaults = inner_defaults | defaults
    return types, defaults


def _parameter(
    name: str, parameter_info: Any, annotation: Any, default: Any, panel: str | None
) -> inspect.Parameter:
    """Return the command parameter from which Typer builds an option."""
    if default is MISSING:
        is_optional = NoneType in get_args(annotation)
        default = None if is_optional else inspect.Parameter.empty
    if default is False and not parameter_info.param_decls:
        parameter_info.param_decls = (f"--{name.replace('_', '-')}",)  # no --no- variant
    if isinstance(parameter_info, OptionInfo):
        parameter_info.rich_help_panel = parameter_info.rich_help_panel or panel
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, parameter_info],
    )


def option(
    help_text: str,
    metavar: str | None = None,
    *names: str,
    default: Any = MISSING,
    annotation: Any = str | None,
    complete: Callable[..., Any] | None = None,
    panel: str | None = None,
    **settings: Any,
) -> Any:
    """Return an option with a value.

    ``metavar`` is the placeholder of the value in the help, ``settings`` are parameters of
    `typer.Option`.
    """
    settings |= {"autocompletion": complete, "rich_help_panel": panel}
    settings.setdefault("case_sensitive", False)  # accepts `--padding True`, as written in Python
    parameter_info = typer.Option(..., *names, metavar=metavar, help=help_text, **settings)
    return Declaration(parameter_info, annotation, default)


def number(
    help_text: str,
    *names: str,
    low: float = 1,
    high: float | None = None,
    metavar: str = "N",
    annotation: Any = int | None,
    **settings: Any,
) -> Any:
    """Return an option that takes a number from ``low`` to ``high``, by default an integer."""
    return option(help_text, metavar, *names, annotation=annotation, min=low, max=high, **settings)


def decimal(help_text: str, **settings: Any) -> Any:
    """Return an option that takes a non-negative decimal number."""
    return number(help_text, low=0, metavar="X", annotation=float | None, **settings)


def argument(
    help_text: str, metavar: str | None = None, complete: Callable[..., Any] | None = None
) -> Any:
    """Return a positional argument."""
    return Declaration(typer.Argument(metavar=metavar, help=help_text, autocompletion=complete))


def flag(help_text: str, *names: str, default: bool | None = False, **settings: Any) -> Any:
    """Return an option without a value. An option that is on by default has a --no- variant."""
    return option(help_text, None, *names, default=default, annotation=bool | None, **settings)


def command(
    function: Callable[..., None], help_options: Mapping[str, Any] = HELP
) -> Callable[..., None]:
    """Return a Typer command for a function of option groups, with all options as parameters.

    ``help_options`` are the options that show the help. The command raises UsageError if the
    options break a rule or a number is not finite.
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
            if isinstance(value, float) and not isfinite(value):  # Typer's range check accepts NaN
                raise UsageError(f"--{name.replace('_', '-')} {value} is not a finite number")
        check_rules(RULES, values, defaults)
        arguments = {}
        for name, group in groups.items():
            arguments[name] = group(**{option: values[option] for option in group.OPTIONS})
        for argument in arguments.values():
            argument.receive_command_options(values)
        try:
            function(**arguments)
        finally:
            LOG.disconnect()

    for name, parameter_info in help_options.items():
        parameters[name] = _parameter(name, parameter_info, bool, False, None)
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameters[name].annotation for name in parameters}
    return run


def record(record_class: type[R], *groups: OptionGroup, **values: Any) -> R:
    """Return a record of the library, its fields filled from options of the same name.

    ``values`` override options, or are fields without an option.
    """
    options: dict[str, Any] = {}
    for group in groups:
        options |= vars(group)
    field_values = {
        field.name: options[field.name] for field in fields(record_class) if field.name in options
    }
    return record_class(**(field_values | values))
