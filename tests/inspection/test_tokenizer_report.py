"""What `inspect --tokenizer` says of tokenizers of every kind."""

import pytest
from tokenizers_made import MADE

from bertcli.inspection.folder import tokenizer_details
from bertcli.model_folder.folder import ModelFolder
from bertcli.tokenizing.tokenizer import Tokenizer

KINDS = {"roberta": "BPE", "metaspace": "BPE", "xlm_roberta": "Unigram", "mpnet": "WordPiece"}


@pytest.mark.parametrize("family", KINDS)
def test_any_kind_of_tokenizer(tmp_path, family):
    folder = ModelFolder(MADE[family](tmp_path / "m", model_max_length=512))
    found = tokenizer_details(Tokenizer.load(folder), folder)
    assert found["model"] == KINDS[family]
    assert found["roles"]["mask_token"] == "<mask>" and found["roles"]["cls_token"] == "<s>"
    assert found["special_tokens"].items() >= {"<s>": 0, "<pad>": 1, "</s>": 2}.items()
    assert found["limit"] == 512
