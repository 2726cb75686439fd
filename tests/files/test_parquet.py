"""Parquet where pyarrow, which comes with an extra, is not installed."""

import pytest
from front import bad

NEEDED = 'pip install "bertcli[parquet]"'


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tokenize", "a", "-f", "parquet"], "writing Parquet needs pyarrow"),
        (["embed", "a", "-q", "-o", "a.parquet"], "writing Parquet needs pyarrow"),
        (["tokenize", "-i", "v.parquet"], "v.parquet: reading Parquet needs pyarrow"),
        (["inspect", "v.parquet"], "v.parquet: reading Parquet needs pyarrow"),
        (["similar", "a", "--corpus", "v.parquet"], "v.parquet: reading Parquet needs pyarrow"),
    ],
)
def test_what_to_install(tmp_path, monkeypatch, argv, message):
    import bertcli.files.parquet as module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "arrow", None)
    (tmp_path / "v.parquet").write_bytes(b"PAR1")
    done = bad(*argv)
    assert (done.error, done.hint) == (message, NEEDED)
    assert [path.name for path in tmp_path.iterdir()] == ["v.parquet"]
