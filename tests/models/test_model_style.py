"""The model files keep to their own rules."""

import ast
from pathlib import Path

import pytest

import bertcli.models

FILES = sorted(Path(bertcli.models.__file__).parent.glob("*.py"))
FUNCTIONS = [
    pytest.param(path, node, id=f"{path.name}:{node.name}:{node.lineno}")
    for path in FILES
    if path.name != "network.py"  # which takes what transformers takes
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef)
]


@pytest.mark.parametrize(("path", "function"), FUNCTIONS)
def test_functions_are_short_and_plain(path, function):
    assert function.end_lineno - function.lineno + 1 <= 40
    assert function.args.kwarg is None, "no **kwargs"
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    assert len([one for one in arguments if one.arg != "self"]) <= 6


def test_no_config_outside_construction():
    """Variants are modules chosen at construction, kernels chosen at call, and surgery."""
    for name in ("bert.py", "heads.py", "attention.py", "positions.py"):
        path = next(path for path in FILES if path.name == name)
        for made in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(made, ast.ClassDef):
                continue
            for method in made.body:
                if not isinstance(method, ast.FunctionDef):
                    continue
                if method.name not in ("__init__", "config"):  # which hands it out
                    names = {node.id for node in ast.walk(method) if isinstance(node, ast.Name)}
                    names |= {
                        node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)
                    }
                    assert "config" not in names, f"{name}: {method.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_models_neither_read_nor_print_nor_hold_buffers_or_globals(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"print", "open", "self.register_buffer", "input"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal)]
