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

from bertcli.errors import BertcliError, UsageError
from bertcli.files.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INSTALL = "pip install 'bertcli[plots]'"
FONT = "DejaVu Sans"  # comes with matplotlib, so that a picture has the same text everywhere
DENSITY = 192  # pixels to the inch of a PNG
LARGEST = 100_000_000  # pixels of a PNG
SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT],
    "font.size": 8.25,  # points
    "text.parse_math": False,  # a $ in a token is a dollar
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "bertcli",  # ids in the file depend on its contents alone
    "pdf.fonttype": 42,  # TrueType, which text can be copied from
}


def require_matplotlib(purpose: str) -> None:
    """Import matplotlib. BertcliError that names the purpose when that fails."""
    with _silence():
        try:
            import matplotlib.figure  # noqa: F401
        except ModuleNotFoundError:
            raise BertcliError(f"{purpose} needs matplotlib", INSTALL) from None
        except (ImportError, OSError, RuntimeError, ValueError) as error:  # MPLBACKEND=nonsense
            raise BertcliError(
                f"{purpose} needs matplotlib, which cannot be imported: {error}",
                "check its installation, and the variables MPLBACKEND and MPLCONFIGDIR",
            ) from None


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with our settings; those of the user are restored afterwards."""
    with _silence():
        import matplotlib.style

        with matplotlib.style.context(["default", SETTINGS]):
            yield


def encode(figure: Figure, form: str, title: str) -> bytes:
    """Return the file of a figure, without a date. UsageError for a PNG that is too large."""
    metadata: dict[str, dict[str, Any]] = {
        "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")) | {"Title": printable(title)},
        "png": {"Software": None},
        "pdf": dict.fromkeys(("Creator", "CreationDate", "Producer")) | {"Title": printable(title)},
    }
    width, height = (round(inches * DENSITY) for inches in figure.get_size_inches())
    if form == "png" and (width * height > LARGEST or max(width, height) >= 2**16):
        raise UsageError(
            f"a picture of {width} x {height} pixels is too large", "choose fewer --layers, --heads"
        )
    buffer = BytesIO()
    figure.savefig(buffer, format=form, dpi=DENSITY, metadata=metadata[form])
    return buffer.getvalue()


def without_glyph(text: str) -> set[str]:
    """Return the characters that the font lacks, which PNG and PDF show as boxes."""
    with _silence():
        from matplotlib.font_manager import FontProperties, findfont, get_font

        known = get_font(findfont(FontProperties(family=FONT))).get_charmap()
    return {one for one in printable(text) if ord(one) not in known}


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress notes on the font cache and warnings of missing glyphs."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
            yield
    finally:
        log.setLevel(level)
