"""The parts of a report that are looked at when they are asked for by name.

`tree` and `checks` need torch, which is imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bertcli.inspection.folder import FolderReport
from bertcli.inspection.tokenizer_report import tokenizer_details
from bertcli.inspection.vector_file import FileReport, check_sha256

if TYPE_CHECKING:
    from bertcli.inspection.verify import VerifyCheck
    from bertcli.models.module_tree import Node


def tensors(report: FolderReport) -> list[dict[str, Any]]:
    """Return the tensors; of a format whose headers say nothing, by loading them."""
    known: list[dict[str, Any]] | None = report.to_json()["tensors"]
    if known is not None:
        return known
    from bertcli.inspection.verify import loaded_tensors

    return loaded_tensors(report)


def tree(report: FolderReport) -> Node:
    """Return the modules of the model."""
    from bertcli.models.module_tree import module_tree

    return module_tree(report.config, report.architecture, report.pooler)


def checks(report: FolderReport) -> Iterator[VerifyCheck]:
    """Yield what is found when everything is loaded, one check after the other."""
    from bertcli.inspection.verify import verify

    return verify(report)


def as_json(
    report: FolderReport,
    *,
    with_tree: bool = False,
    with_tensors: bool = False,
    verify: bool = False,
) -> dict[str, Any]:
    """Return the report and its parts as JSON values."""
    found = report.to_json()
    if report.tokenizer is not None:
        found["tokenizer"] |= tokenizer_details(report.folder.path)
    if with_tree:
        found["tree"] = tree(report).to_json()
    if with_tensors:
        found["tensors"] = tensors(report)
    if verify:
        found["verify"] = [asdict(check) for check in checks(report)]
    return found


def check_file(report: FileReport) -> VerifyCheck:
    """Return whether a file of vectors is the one that its manifest is of."""
    from bertcli.inspection.verify import VerifyCheck

    same, what = check_sha256(report)
    return VerifyCheck(what, same)


def is_finite(report: FileReport) -> bool:
    """Return whether all values of a file of vectors are finite."""
    return not any(array["nan"] or array["inf"] for array in report.arrays)
