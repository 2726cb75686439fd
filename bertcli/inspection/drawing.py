"""Drawing with matplotlib: SVG, PNG and PDF, without a display, the same everywhere.

It is imported here and inside the functions that draw, never earlier: it is the extra `plots`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

from bertcli.errors import BertcliError
from bertcli.files.printable import printable
from bertcli.files.versions import install_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DENSITY = 192  # pixels to the inch of a PNG
INK, FAINT = "#1c2430", "#8b95a3"
SENTENCES = ("#0e7c86", "#c2570c")  # of the text, and of its pair
SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same text everywhere
    "font.size": 8.25,  # points
    "text.parse_math": False,  # a $ in a token is a dollar
    "savefig.bbox": "tight",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "bertcli",  # ids in the file depend on its contents alone
    "pdf.fonttype": 42,  # TrueType, which text can be copied from
}


def require_matplotlib(purpose: str) -> None:
    """Import matplotlib. BertcliError that names the purpose when that fails."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no notes on its cache of fonts
    try:
        import matplotlib.figure  # noqa: F401
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # MPLBACKEND=nonsense
        why = f"{purpose} needs matplotlib: {error}"
        raise BertcliError(why, install_command("plots")) from None


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with our settings; those of the user are restored afterwards."""
    import matplotlib.style

    with matplotlib.style.context(["default", SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def encode(figure: Figure, form: str, title: str) -> bytes:
    """Return the file of a figure, without a date."""
    metadata: dict[str, dict[str, Any]] = {
        "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")) | {"Title": printable(title)},
        "png": {"Software": None},
        "pdf": dict.fromkeys(("Creator", "CreationDate", "Producer")) | {"Title": printable(title)},
    }
    buffer = BytesIO()
    figure.savefig(buffer, format=form, dpi=DENSITY, metadata=metadata[form])
    return buffer.getvalue()
