"""Servers that several tests share."""

import pytest
from served import running

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="package")
def server():
    """A server of the default model."""
    with running() as served:
        yield served
