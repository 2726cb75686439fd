"""`bertcli.Source`: an input whose options are keywords at one level.

Reader(Source(paths=("reviews.csv",), text_field="body", single=True))
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from bertcli.records.input import OPTION_GROUPS, PUBLIC_NAMES, Input, option_names

INPUT_NAMES = {public: name for name, public in PUBLIC_NAMES.items()}


class Source(Input):
    """An input for Python: texts or files, their format, and the fields of a record.

    The options are those of the command line; each is also an attribute.
    """

    def __init__(
        self,
        texts: tuple[str, ...] = (),
        pair: str | None = None,
        paths: tuple[str, ...] = (),
        list_file: str | None = None,
        **options: Any,
    ) -> None:
        options = {INPUT_NAMES.get(name, name): value for name, value in options.items()}
        given = Input.of(texts=texts, pair=pair, paths=paths, list_file=list_file, **options)
        super().__init__(**{field.name: getattr(given, field.name) for field in fields(given)})

    def __getattr__(self, name: str) -> Any:
        input_name = INPUT_NAMES.get(name, name)
        for group, group_class in OPTION_GROUPS.items():
            if input_name in option_names(group_class) and group in vars(self):
                return getattr(vars(self)[group], input_name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
