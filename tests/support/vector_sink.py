"""Rows straight to a file of vectors, without a model."""

from contextlib import closing, contextmanager

from bertcli.vectors.fingerprint import Inputs
from bertcli.vectors.output import begin, claimed


@contextmanager
def open_vectors(target, fingerprint):
    """Yield the sink of a run without inputs."""
    with (
        claimed(target, Inputs()) as files,
        closing(begin(target, files, fingerprint, Inputs())) as sink,
    ):
        yield sink
