"""Run the Python of a documentation page in one process: blocks, and tables of equal expressions.

    echo '[{"code": "print(1)"}]' | python page_code.py

Reads steps as JSON from stdin and writes, for each, what it printed or why it failed, as JSON. A
step has `code` to execute; or `theirs` and `ours`, two expressions with equal values (`theirs` may
be empty). A step with `fresh` forgets the names of earlier steps.
"""

import contextlib
import io
import json
import math
import sys
import traceback
import warnings
from collections.abc import Mapping

TOLERANCE = 1e-5


def equal(theirs, ours):
    """Return True if two values are equal, except for types of containers and last digits."""
    theirs, ours = plain(theirs), plain(ours)
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return theirs.keys() == ours.keys() and all(equal(theirs[key], ours[key]) for key in theirs)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(theirs) == len(ours) and all(map(equal, theirs, ours))
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(theirs, ours, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return theirs == ours


def plain(value):
    """Return a tensor, array or batch as lists, dicts, numbers and texts."""
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping) or hasattr(value, "keys"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118 - a batch yields texts
    return list(value) if isinstance(value, tuple) else value


def run(step, names):
    """Return what a step printed, or a message for a row whose values differ."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if "code" in step:
            exec(compile(step["code"], "<page>", "exec"), names)
        else:
            ours = eval(step["ours"], names)
            if step["theirs"]:
                theirs = eval(step["theirs"], names)
                if not equal(theirs, ours):
                    print(f"{step['theirs']}\n  {theirs}\n{step['ours']}\n  {ours}")
    return printed.getvalue()


def main():
    """Run the steps of stdin."""
    warnings.simplefilter("ignore")
    outputs = []
    names = {"__name__": "page"}
    for step in json.load(sys.stdin):
        if step.get("fresh"):
            names = {"__name__": "page"}
        try:
            outputs.append(run(step, names))
        except BaseException:
            outputs.append(traceback.format_exc())
    json.dump(outputs, sys.stdout)


if __name__ == "__main__":
    main()
