"""Rows straight to a file of vectors, without a model."""

from bertcli.vectors.run_folder import Inputs


def open_vectors(target, fingerprint):
    """Open the sink of a run without inputs."""
    return target.opened(fingerprint, Inputs())
