"""A page is all that is known of a family: data, of which nothing else in the program speaks."""

import ast
import re
from pathlib import Path

import pytest

from bertcli import families
from bertcli.families.registry import FAMILIES
from bertcli.models.heads import ARCHITECTURES

ROOT = Path(families.__file__).parent
SHARED = {"__init__", "family", "registry", "structure"}
PAGES = sorted(path for path in ROOT.glob("*.py") if path.stem not in SHARED)
WITHOUT_NAMES = ("models", "inference", "embedding", "tasks", "vectors", "training")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_imports_another(page):
    tree = ast.parse(page.read_text("utf-8"))
    ours = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertcli.")
    }
    shared = {f"bertcli.families.{name}" for name in SHARED}
    assert ours <= {"bertcli.errors", "bertcli.io.typed_json", *shared}


@pytest.mark.parametrize("package", WITHOUT_NAMES)
def test_code_knows_no_family(package):
    """Comments may name the family that a seam is for; code may not."""
    kinds = {*FAMILIES} - {"bert"}
    for path in (ROOT.parent / package).rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not kinds & {word for word in words if isinstance(word, str)}, path
        assert "model_type ==" not in path.read_text("utf-8"), path


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_a_page_speaks_of_classes_that_there_are(family):
    ours = set(family.classes.values())
    assert ours <= {*ARCHITECTURES} and {*family.head_tensors} <= ours
    assert all(family.our_class(family.their_class(name)) == name for name in ours)
    for theirs, mine in family.tensors:
        for part in (mine,) if isinstance(mine, str) else mine:
            assert len(re.findall("#", theirs)) == len(re.findall("#", part)), theirs


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_an_unknown_part_of_an_encoder_stays_one(family):
    """It is refused as a tensor that the config does not have, and not passed over as a head's."""
    assert family.our_names(f"{family.base}.memory.weight") == ("bert.memory.weight",)
    assert family.our_names("memory.weight") == ("memory.weight",)
