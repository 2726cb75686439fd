"""Whether torch may find a GPU here, told without the seconds that importing it takes."""

from __future__ import annotations

import os
import re
from glob import glob
from importlib.util import find_spec

BUILDS = re.compile(r"^(?:cuda|hip|xpu)\b.*= *'", re.MULTILINE)  # of torch, in torch/version.py
METAL = "/System/Library/Frameworks/Metal.framework"  # of a Mac
# What a GPU looks like where there is /proc: on Linux.
NODES = ("/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/kfd", "/dev/dri/render*", "/dev/dxg")


def gpu_possible() -> bool:
    """Tell whether torch has to be asked: false is certain, true is not."""
    if os.path.exists(METAL):
        return True
    return _built_for_gpus() and (not os.path.exists("/proc/self") or any(map(glob, NODES)))


def _built_for_gpus() -> bool:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    told = os.path.join(os.path.dirname(spec.origin), "version.py")
    try:
        with open(told, encoding="utf-8") as file:
            return bool(BUILDS.search(file.read()))
    except OSError:
        return True
