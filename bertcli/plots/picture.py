"""The contents of a file with the attention of one text or several, in any form.

html is a page to explore it, one self-contained file that makes no request: page.html, filled with
page.css, page.js and the data; a rule in it forbids every request.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

from bertcli.errors import UsageError
from bertcli.plots.attention_maps import AttentionMaps

DRAWN = ("svg", "png", "pdf")  # with matplotlib
PICTURES = ("html", *DRAWN, "json", "npz")
LARGEST = 20_000_000  # weights in a page: about 50 MB, which a browser still opens in seconds


def picture(texts: Sequence[AttentionMaps], form: str) -> bytes:
    """Return the contents of a file: html, json or npz of one text or several, or svg, png, pdf.

    Of several texts, json is a list, and the arrays of npz have the number of their text behind
    their names: attention_0, tokens_0, attention_1.
    """
    match form:
        case "html":
            return page(texts)
        case "json":
            rows = [maps.to_json() for maps in texts]
            text = json.dumps(rows if len(rows) > 1 else rows[0], ensure_ascii=False)
            return text.encode("utf-8", "replace") + b"\n"
        case "npz":
            import numpy as np

            arrays = {
                f"{name}_{at}" if len(texts) > 1 else name: array
                for at, maps in enumerate(texts)
                for name, array in maps.arrays().items()
            }
            file = io.BytesIO()
            np.savez(file, **arrays)
            return file.getvalue()
    from bertcli.plots.attention_figure import attention_picture

    (maps,) = texts
    return attention_picture(maps, form)


def page(texts: Sequence[AttentionMaps]) -> bytes:
    """Return a page of one text or several. UsageError when it is too large for a browser."""
    from html import escape
    from importlib.resources import files
    from string import Template

    from bertcli.plots.drawing import SENTENCES, STEPS, TICKS, hexadecimal, ramp

    numbers = sum(maps.count * len(maps.tokens) ** 2 for maps in texts)
    if numbers > LARGEST:
        count = sum(maps.count for maps in texts)
        tokens = max(len(maps.tokens) for maps in texts)
        raise UsageError(
            f"{count} {'map' if count == 1 else 'maps'} of {tokens} tokens "
            f"have {numbers:,} weights: too many for a page",
            "choose fewer --layers or --heads",
        )
    look = {
        "light": [hexadecimal(step) for step in ramp()],
        "dark": [hexadecimal(step) for step in ramp(dark=True)],
        "steps": STEPS,
        "ticks": TICKS,
        "sentences": SENTENCES,
    }
    rows = [maps.rounded() for maps in texts]
    content = {"texts": rows, "modelLayers": texts[0].layers, "look": look}
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # Safe inside a script element, whatever the tokens are.
    for character in "<\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = [
        (files("bertcli.plots") / f"page.{suffix}").read_text(encoding="utf-8")
        for suffix in ("html", "css", "js")
    ]
    model = escape(texts[0].model)
    filled = Template(parts[0]).substitute(model=model, style=parts[1], script=parts[2], data=data)
    return filled.encode("utf-8", "replace")


def unsupported_characters(texts: Sequence[AttentionMaps], form: str) -> str:
    """Return which characters of the tokens this format draws as boxes, in words, or ""."""
    if form not in ("png", "pdf"):
        return ""
    from bertcli.plots.drawing import without_glyph

    boxes = without_glyph("".join(token for maps in texts for token in maps.tokens))
    if not boxes:
        return ""
    first = " ".join(sorted(boxes)[:10])
    return f"{form.upper()} draws these characters as boxes: {first}; SVG and HTML have them all"
