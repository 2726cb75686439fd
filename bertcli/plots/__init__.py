"""Attention as pictures: a page that needs nothing else; SVG, PNG and PDF with matplotlib."""

from __future__ import annotations

import json

from bertcli.plots.attention_maps import AttentionMaps


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
