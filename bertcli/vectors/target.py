"""The file that vectors are to be written to, and what can never be."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from bertcli.errors import OutputError, UsageError
from bertcli.vectors.formats import WITH_FIELDS, WRITERS


@dataclass(frozen=True)
class Target:
    """An output file and how it is to be made."""

    path: Path
    form: str
    precision: str = "float32"
    resume: bool = False
    overwrite: bool = False
    manifest: bool = True
    many: bool = False  # whether a record may have several rows
    ids: bool = False  # whether vectors alone have the ids of their records beside them,
    every_id: bool = False  # also where no record has one: then it is its number

    @property
    def lists_ids(self) -> bool:
        """Whether the ids of records go to an index, or into the archive."""
        return self.ids and not self.many and self.form not in WITH_FIELDS

    @property
    def indexed(self) -> bool:
        """Whether there may be an index beside the output: of rows and whose they are."""
        return (self.many or self.lists_ids) and self.form not in (*WITH_FIELDS, *self._with_ids)

    @property
    def _with_ids(self) -> tuple[str, ...]:
        return () if self.many else ("npz",)

    def check(self) -> None:
        """Raise OutputError or UsageError for what can never be written."""
        if self.resume and self.overwrite:
            raise UsageError(
                "--resume and --overwrite contradict each other",
                "--resume goes on with a run, --overwrite begins again",
            )
        if self.form not in WRITERS:
            raise OutputError(f"vectors cannot be written as {self.form}", ", ".join(WRITERS))
        if self.many and self.form == "csv":
            raise UsageError(
                "csv has one vector a row, and here a text has several",
                "use -f jsonl, parquet or npy",
            )
        if self.path.is_dir():
            raise OutputError(f"{self.path}: is a folder", "name a file in it")
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise OutputError(
                f"{self.path}: is a device or pipe, where nothing can be resumed",
                "write JSONL or CSV to stdout",
            )
        if not self.path.parent.is_dir():
            raise OutputError(
                f"{self.path}: there is no folder {self.path.parent}", "make the folder first"
            )
        if self.form == "parquet":
            from bertcli.files.parquet import check_installed

            check_installed("writing Parquet", OutputError)
