"""Attention as pictures: a self-contained page; SVG, PNG and PDF with matplotlib.

`attention_maps` are the numbers with their labels, `page` and `attention_figure` draw them in the
`colours` of weights; `drawing` readies matplotlib, also for the curves of a training.
"""

from __future__ import annotations

import json

from bertcli.plots.attention_maps import AttentionMaps

DRAWN = ("svg", "png", "pdf")  # with matplotlib
PICTURES = ("html", *DRAWN, "json")


def picture(found: AttentionMaps, form: str) -> bytes:
    """Return the contents of a file of this format: html, svg, png, pdf or json."""
    match form:
        case "html":
            from bertcli.plots.page import page

            return page(found)
        case "json":
            text = json.dumps(found.to_json(), ensure_ascii=False)
            return text.encode("utf-8", "replace") + b"\n"
    from bertcli.plots.attention_figure import attention_picture

    return attention_picture(found, form)


def unsupported_characters(found: AttentionMaps, form: str) -> str:
    """Return which characters of the tokens this format draws as boxes, in words, or ""."""
    if form not in ("png", "pdf"):
        return ""
    from bertcli.plots.drawing import without_glyph

    boxes = without_glyph("".join(found.tokens))
    if not boxes:
        return ""
    some = " ".join(sorted(boxes)[:10])
    return f"{form.upper()} draws these characters as boxes: {some}; SVG and HTML have them all"
