"""What embed writes of records as arrays and of records one by one: the same bytes."""

import json

import hostile
import pytest
from front import PACKAGE, call
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertcli.tokenizing.ragged import RaggedMaker

TINY = PACKAGE / "samples" / "tiny-bert"
SET = ("embed", "-q", "-m", TINY, "--device", "cpu", "--threads", 1, "--keep-fields", "*")
FORMS = ("npy", "npz", "safetensors", "parquet", "jsonl", "csv")
WITH_FIELDS = ("parquet", "jsonl", "csv")

texts = st.one_of(hostile.texts, st.sampled_from(["a", "i love nlp " * 9, ""]))
keys = st.one_of(st.text(st.characters(codec="utf-8", min_codepoint=33), max_size=3), st.integers())
rows = st.fixed_dictionaries(
    {"text": texts}, optional={"pair": texts, "id": keys, "x": st.one_of(st.integers(0, 9), texts)}
)
alone = st.fixed_dictionaries({"text": texts})
options = st.fixed_dictionaries(
    {"--window": st.integers(1, 5)},
    optional={
        "--prompt": st.sampled_from(["q: ", "[MASK] "]),
        "--pooling": st.sampled_from(["mean", "cls", "mean+max", "pooler", "lasttoken"]),
        "--layers": st.sampled_from(["-1", "0,1", "-1,-2"]),
        "--layer-combine": st.sampled_from(["mean", "concat"]),
        "--on-truncate": st.sampled_from(["warn", "error", "window"]),
        "--max-length": st.integers(4, 12),
        "--dim": st.integers(1, 32),
        "--normalize": st.none(),
        "--no-special-tokens": st.none(),
        "--no-parse-special": st.none(),
        "--precision": st.sampled_from(["float16", "int8"]),
        "--batch-tokens": st.integers(8, 64),
    },
)


@given(
    lines=st.lists(rows, max_size=7) | st.lists(alone, max_size=7),
    options=options,
    form=st.sampled_from(FORMS),
)
@example([{"text": "a"}, {"text": "b c", "pair": "d", "id": 1, "x": 2}], {"--window": 1}, "jsonl")
@settings(max_examples=30)
def test_any_options(tmp_path, lines, options, form):
    source, argv = tmp_path / "in.jsonl", [one for some in options.items() for one in some]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = SET if form in WITH_FIELDS else SET[:-2]
    found = []
    for fits in (None, property(lambda maker: False)):
        folder = tmp_path / "out"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            if fits:
                patch.setattr(RaggedMaker, "fits", fits)
            ran = call(*own, *filter(None, argv), "-i", source, "-o", folder / f"x.{form}")
        found.append((ran, {path.name: path.read_bytes() for path in folder.iterdir()}))
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert found[0] == found[1]
