"""Drawing with matplotlib: SVG, PNG and PDF, without a display, the same everywhere; and colours.

It is imported here and inside the functions that draw, never earlier: it is the extra `plots`.

The colours of weights are even steps of lightness from paper to ink, made in the OKLCH space. A
weight from 0 to 1 gets its colour by its square root, so that weights of a few per cent, which most
are, can be distinguished. Source of the space: Bjoern Ottosson, A perceptual color space for image
processing, 2020.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from math import cos, pi, radians, sin
from typing import TYPE_CHECKING, Any

from bertcli.errors import BertcliError, UsageError
from bertcli.files.printable import printable
from bertcli.files.versions import install_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
Colour = tuple[int, int, int]


def colour(weight: float) -> Colour:
    """Return red, green and blue, 0 to 255, of a weight from 0 to 1."""
    return ramp()[round(min(max(weight, 0.0), 1.0) ** 0.5 * (STEPS - 1))]


@lru_cache
def ramp(dark: bool = False) -> tuple[Colour, ...]:
    """Return the colours from weight 0 to 1; `dark` is for a dark background."""
    shades = []
    for step in range(STEPS):
        t = step / (STEPS - 1)
        if dark:
            shades.append(_oklch(0.24 + 0.70 * t, 0.02 + 0.12 * sin(pi * t**0.9), 275 - 175 * t))
        else:
            chroma = 0.008 + 0.115 * sin(pi * t**0.8)
            shades.append(_oklch(0.985 - 0.70 * t, chroma, 105 + 165 * t))
    return tuple(shades)


def hexadecimal(colour: Colour) -> str:
    """Return a colour as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def shades(weights: Any) -> Any:
    """Return the colours of an array of weights as an array [rows, columns, 3] of bytes."""
    import numpy

    palette = numpy.array(ramp(), dtype=numpy.uint8)
    return palette[(weights.clip(0, 1) ** 0.5 * (STEPS - 1)).round().astype(int)]


def readable_on(background: Colour) -> Colour:
    """Return black or white, whichever is more readable."""
    red, green, blue = background
    return (255, 255, 255) if 0.3 * red + 0.59 * green + 0.11 * blue < 140 else (20, 25, 32)


def _oklch(lightness: float, chroma: float, hue: float) -> Colour:
    a, b = chroma * cos(radians(hue)), chroma * sin(radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        _channel(4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short),
        _channel(-1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short),
        _channel(-0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short),
    )


def _channel(linear: float) -> int:
    linear = min(max(linear, 0.0), 1.0)
    curved = 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
    return round(255 * curved)
