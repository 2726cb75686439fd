"""The contents of a file with the attention of one text or several, in any form."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

from bertcli.plots.attention_maps import AttentionMaps

DRAWN = ("svg", "png", "pdf")  # with matplotlib
PICTURES = ("html", *DRAWN, "json", "npz")


def picture(found: Sequence[AttentionMaps], form: str) -> bytes:
    """Return the contents of a file: html, json or npz of one text or several, or svg, png, pdf.

    Of several texts, json is a list, and the arrays of npz have the number of their text behind
    their names: attention_0, tokens_0, attention_1.
    """
    match form:
        case "html":
            from bertcli.plots.page import page

            return page(found)
        case "json":
            texts = [one.to_json() for one in found]
            text = json.dumps(texts if len(texts) > 1 else texts[0], ensure_ascii=False)
            return text.encode("utf-8", "replace") + b"\n"
        case "npz":
            return _arrays(found)
    from bertcli.plots.attention_figure import attention_picture

    (one,) = found
    return attention_picture(one, form)


def _arrays(found: Sequence[AttentionMaps]) -> bytes:
    import numpy as np

    arrays = {
        f"{name}_{at}" if len(found) > 1 else name: array
        for at, one in enumerate(found)
        for name, array in one.arrays().items()
    }
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unsupported_characters(found: Sequence[AttentionMaps], form: str) -> str:
    """Return which characters of the tokens this format draws as boxes, in words, or ""."""
    if form not in ("png", "pdf"):
        return ""
    from bertcli.plots.drawing import without_glyph

    boxes = without_glyph("".join(token for one in found for token in one.tokens))
    if not boxes:
        return ""
    some = " ".join(sorted(boxes)[:10])
    return f"{form.upper()} draws these characters as boxes: {some}; SVG and HTML have them all"
