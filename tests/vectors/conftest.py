"""What tests of vectors share."""

import pytest

from bertcli.embedding.embedder import Embedder


@pytest.fixture
def ran(monkeypatch):
    """The number of texts that a model ran over, for each call."""
    texts = []
    original = Embedder._run

    def run(self, tokens):
        texts.append(len(tokens))
        return original(self, tokens)

    monkeypatch.setattr(Embedder, "_run", run)
    return texts
