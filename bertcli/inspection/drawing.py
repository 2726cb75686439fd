"""Drawing with matplotlib: SVG, PNG and PDF, without a display, the same everywhere; and colours.

It is imported here and inside the functions that draw, never earlier: it is the extra `plots`.

The colours of weights are even steps of lightness from paper to ink. A weight from 0 to 1 gets its
colour by its square root, so that weights of a few per cent, which most are, can be distinguished.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

from bertcli.errors import BertcliError, UsageError
from bertcli.files.printable import printable
from bertcli.files.versions import install_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

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
            raise BertcliError(f"{purpose} needs matplotlib", install_command("plots")) from None
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


def encode(figure: Figure, form: str, title: str, box: Bbox | None = None) -> bytes:
    """Return the file of a figure, or of what is in a box of inches, without a date.

    UsageError for a PNG that is too large.
    """
    box = box or figure.bbox_inches
    metadata: dict[str, dict[str, Any]] = {
        "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")) | {"Title": printable(title)},
        "png": {"Software": None},
        "pdf": dict.fromkeys(("Creator", "CreationDate", "Producer")) | {"Title": printable(title)},
    }
    width, height = (round(inches * DENSITY) for inches in box.size)
    if form == "png" and (width * height > LARGEST or max(width, height) >= 2**16):
        raise UsageError(
            f"a picture of {width} x {height} pixels is too large", "choose fewer --layers, --heads"
        )
    buffer = BytesIO()
    figure.savefig(buffer, format=form, dpi=DENSITY, metadata=metadata[form], bbox_inches=box)
    return buffer.getvalue()


def without_glyph(text: str) -> set[str]:
    """Return the characters that the font lacks, which PNG and PDF show as boxes."""
    with _silence():
        from matplotlib.font_manager import FontProperties, findfont, get_font

        glyphs = get_font(findfont(FontProperties(family=FONT))).get_charmap()
    return {character for character in printable(text) if ord(character) not in glyphs}


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


# --- colours ---

STEPS = 64
TICKS = (0.0, 0.05, 0.25, 0.5, 1.0)  # of the legend
INK, FAINT = "#1c2430", "#8b95a3"
SENTENCES = ("#0e7c86", "#c2570c")  # of the text, and of its pair
# From weight 0 to 1, the steps between them in even steps of lightness.
ON_LIGHT = "fbfaf4 d1e6b2 91d397 44bc95 009f97 008291 1d617b 2e4358 282a2e"
ON_DARK = "1c1f29 14365b 00557f 00788e 00988b 2baf85 8ac38a c7d5a8 eeecdd"


@lru_cache
def ramp(dark: bool = False) -> Any:
    """Return the colours from weight 0 to 1, [STEPS, 3]; `dark` is for a dark background."""
    import numpy

    anchors = [[*bytes.fromhex(anchor)] for anchor in (ON_DARK if dark else ON_LIGHT).split()]
    places = numpy.linspace(0, len(anchors) - 1, STEPS)
    channels = [
        numpy.interp(places, range(len(anchors)), part) for part in zip(*anchors, strict=True)
    ]
    return numpy.stack(channels, 1).round().astype(numpy.uint8)


def shades(weights: Any) -> Any:
    """Return the colours of weights [...] as bytes of red, green and blue, [..., 3]."""
    import numpy

    return ramp()[numpy.rint(numpy.clip(weights, 0, 1) ** 0.5 * (STEPS - 1)).astype(int)]


def hexadecimal(colour: Any) -> str:
    """Return a colour as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def readable_on(background: Any) -> str:
    """Return black or white, whichever is more readable."""
    red, green, blue = background.tolist()
    return "#ffffff" if 0.3 * red + 0.59 * green + 0.11 * blue < 140 else "#141920"
