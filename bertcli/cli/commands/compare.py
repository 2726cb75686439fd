"""`bertcli compare`: the differences between two files of vectors."""

from typing import Annotated

from bertcli.cli.options.common import ConsoleOptions, ReportOutput
from bertcli.cli.options.groups import OptionGroup, argument, decimal, number


class PairOptions(OptionGroup):
    """The two files, and the tolerance."""

    a: Annotated[str, argument("Vectors: .npy, .npz, .safetensors, .jsonl, .csv, .parquet.", "A")]
    b: Annotated[str, argument("Vectors of the same texts.", "B")]
    tolerance: Annotated[
        float | None,
        decimal(
            "Maximum difference of a value; above it, the exit code is 1.",
            envvar="BERTCLI_TOLERANCE",
        ),
    ] = None
    worst: Annotated[int, number("Number of rows to show, largest differences first.")] = 5


def compare(pair: PairOptions, output: ReportOutput, messages: ConsoleOptions) -> None:
    """Compare two files of vectors: largest difference, cosines, worst rows.

    For vectors of different widths: the correlation of their similarity matrices, and the overlap
    of nearest neighbours (above 4,096 rows, of a sample).

    Exit code 0, or 1 when the numbers of rows differ or --tolerance is exceeded. Rows are numbered
    from 0.

    $ bertcli compare before.npy after.npy --tolerance 1e-5
    $ bertcli compare before.npy after.npy -f jsonl
    """
    from bertcli.vectors.agreement import compare as measure

    form = output.form()
    agreement = measure(pair.a, pair.b, pair.worst)
    if form == "table":
        from bertcli.cli.display.screen import show
        from bertcli.cli.display.vector_tables import comparison_view

        show(*comparison_view(agreement))
    else:
        with output.open(form, (pair.a, pair.b)) as write:
            write([agreement.fields()])
    if pair.tolerance is not None:
        agreement.check(pair.tolerance)
