"""What the tests of training share as fixtures."""

import pytest
from pretrain_folders import STILL


@pytest.fixture(scope="session")
def base(models):
    """A small random BERT without dropout, so that steps can be compared."""
    return models("BertForMaskedLM", **STILL)
