"""Options of the commands that compute vectors."""

from typing import Any

from bertcli.cli.options.completion import complete_choices
from bertcli.cli.options.groups import option
from bertcli.embedding.options import POOLINGS, SINGLE_POOLINGS


def pooling_option(help_text: str) -> Any:
    """Return the --pooling option."""
    return option(
        help_text,
        "MODE",
        envvar="BERTCLI_POOLING",
        complete=complete_choices(*POOLINGS, *SINGLE_POOLINGS),
    )
