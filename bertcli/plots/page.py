"""A page to explore attention: one self-contained file that makes no request.

It is page.html, filled with page.css, page.js and the data; a rule in it forbids every request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from bertcli.errors import UsageError
from bertcli.plots.attention_maps import AttentionMaps
from bertcli.plots.colours import SENTENCES, STEPS, TICKS, hexadecimal, ramp

LARGEST = 20_000_000  # weights in a page: about 50 MB, which a browser still opens in seconds


def page(found: Sequence[AttentionMaps]) -> bytes:
    """Return a page of one text or several. UsageError when it is too large for a browser."""
    numbers = sum(one.count * len(one.tokens) ** 2 for one in found)
    if numbers > LARGEST:
        count = sum(one.count for one in found)
        tokens = max(len(one.tokens) for one in found)
        raise UsageError(
            f"{count} {'map' if count == 1 else 'maps'} of {tokens} tokens "
            f"have {numbers:,} weights: too many for a page",
            "choose fewer --layers or --heads",
        )
    filled = Template(_file("page.html")).substitute(
        model=escape(found[0].model),
        style=_file("page.css"),
        script=_file("page.js"),
        data=_embedded(_content(found)),
    )
    return filled.encode("utf-8", "replace")


def _file(name: str) -> str:
    return (files("bertcli.plots") / name).read_text(encoding="utf-8")


def _content(found: Sequence[AttentionMaps]) -> dict[str, Any]:
    look = {
        "light": [hexadecimal(step) for step in ramp()],
        "dark": [hexadecimal(step) for step in ramp(dark=True)],
        "steps": STEPS,
        "ticks": TICKS,
        "sentences": SENTENCES,
    }
    texts = [one.rounded() for one in found]
    return {"texts": texts, "modelLayers": found[0].layers, "look": look}


def _embedded(value: Any) -> str:
    """Return JSON that is safe inside a script element, whatever the tokens are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
