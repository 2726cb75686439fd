"""Reports on model folders, files of vectors, attention and corpora.

    report = inspect_folder(find_model("bert-base-uncased", files=MODEL_FILES))
    report.parameters["without_pooler"]   # 108891648

- `folder` reports on a model folder, in full or in one line, and verifies it, without torch. A
  missing file is a warning in the report, a broken one is an error.
- `vector_file` reports on a file of vectors.
- `attention` runs a model on texts and returns their attention maps: as numbers, as a page, as
  figures of matplotlib. Its settings of matplotlib are also used for training curves.
- `corpus_map` arranges the texts of a corpus in the plane, in labelled clusters; labels omit
  `stop_words`.

Start with `folder`.
"""

from bertcli.inspection.folder import FolderReport, inspect_folder
from bertcli.inspection.vector_file import FILE_SUFFIXES, FileReport, inspect_file

__all__ = [
    "FILE_SUFFIXES",
    "FileReport",
    "FolderReport",
    "inspect_file",
    "inspect_folder",
]
