"""Write rows to a file of vectors without a model."""

from bertcli.formats.vector_writer import RECORD_COLUMNS, OutputFields
from bertcli.runs.identity import Inputs


def open_vectors(target, fingerprint):
    """Open the writer of a run without inputs."""
    return target.opened(fingerprint, Inputs())


def fields_of(rows, sizes=None):
    """Return rows as the columns that a run writes of its records."""
    first = [
        [row.get(name, 0 if name == "truncated" else None) for row in rows]
        for name in RECORD_COLUMNS
    ]
    known = [column if any(value is not None for value in column) else None for column in first]
    others = [{key: row[key] for key in [*row][1:] if key in ("tag", "score")} for row in rows]
    return OutputFields(len(rows), *known, others if any(others) else None, sizes)
