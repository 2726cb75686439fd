"""Addresses in messages and manifests: what opens a door stays out of them.

public("http://me:secret@mirror.org/x?token=abc")   # 'http://***@mirror.org/x?token=***'
"""

from __future__ import annotations

import re

HIDDEN = "***"

ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://\S+")
# A name and a password end at the "@" before the path. A password with a "/" in it, which is wrong
# but happens, is told from a port, and from a path with an "@", by what follows the colon.
USER = re.compile(r"(?<=://)(?:[^/?#]*|[^/@:]*:(?!\d*/)[^@]*)@")
QUERY = re.compile(r"([?&][\w.~%-]+=)[^&\s'\"]+")


def public(text: str) -> str:
    """Return a text whose addresses have no names, no passwords and no values of a query."""
    if "://" not in text:
        return text

    def hidden(address: re.Match[str]) -> str:
        return QUERY.sub(rf"\1{HIDDEN}", USER.sub(f"{HIDDEN}@", address[0], count=1))

    return ADDRESS.sub(hidden, text)
