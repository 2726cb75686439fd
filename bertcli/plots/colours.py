"""The colours of weights: even steps of lightness from paper to ink, made in the OKLCH space.

A weight from 0 to 1 gets its colour by its square root, so that weights of a few per cent, which
most are, can be distinguished. Source of the space: Bjoern Ottosson, A perceptual color space for
image processing, 2020.
"""

from __future__ import annotations

from functools import lru_cache
from math import cos, pi, radians, sin
from typing import Any

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
    return tuple(_at(step / (STEPS - 1), dark) for step in range(STEPS))


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


def _at(t: float, dark: bool) -> Colour:
    if dark:
        return _oklch(0.24 + 0.70 * t, 0.02 + 0.12 * sin(pi * t**0.9), 275 - 175 * t)
    return _oklch(0.985 - 0.70 * t, 0.008 + 0.115 * sin(pi * t**0.8), 105 + 165 * t)


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
