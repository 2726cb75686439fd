"""A page to explore attention: one self-contained file that makes no request.

It is page.html, filled with page.css, page.js and the data; a rule in it forbids every request.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from bertcli.errors import UsageError
from bertcli.plots.attention_maps import AttentionMaps
from bertcli.plots.colours import SENTENCES, STEPS, TICKS, hexadecimal, ramp

LARGEST = 20_000_000  # weights in a page: about 50 MB, which a browser still opens in seconds


def page(found: AttentionMaps) -> bytes:
    """Return the page. UsageError when it would be too large for a browser."""
    numbers = found.count * len(found.tokens) ** 2
    if numbers > LARGEST:
        raise UsageError(
            f"{found.count} {'map' if found.count == 1 else 'maps'} of {len(found.tokens)} tokens "
            f"have {numbers:,} weights: too many for a page",
            "choose fewer --layers or --heads",
        )
    filled = Template(_file("page.html")).substitute(
        model=escape(found.model),
        style=_file("page.css"),
        script=_file("page.js"),
        data=_embedded(_content(found)),
    )
    return filled.encode("utf-8", "replace")


def _file(name: str) -> str:
    return (files("bertcli.plots") / name).read_text(encoding="utf-8")


def _content(found: AttentionMaps) -> dict[str, Any]:
    look = {
        "light": [hexadecimal(step) for step in ramp()],
        "dark": [hexadecimal(step) for step in ramp(dark=True)],
        "steps": STEPS,
        "ticks": TICKS,
        "sentences": SENTENCES,
    }
    return found.to_json() | {"modelLayers": found.layers, "look": look}


def _embedded(value: Any) -> str:
    """Return JSON that is safe inside a script element, whatever the tokens are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
