"""What is in a model folder or in a file of vectors: reports, without torch and without loading it.

    report = inspect_folder(find_model("bert-base-uncased", files=MODEL_FILES))
    report.parameters["without_pooler"]   # 108891648

A missing part of a folder is a warning in the report, a broken one is an error. `folder` reports a
folder, one without an encoder too, or any in one line; `vector_file` a file; both check that all is
sound. `attention` loads the model, looks at texts, and has their maps as numbers, as a page and as
figures; what readies matplotlib there is also for the curves of a training. `corpus_map` lays out
the texts of a corpus, on a page or as columns, and names its clusters without the words of
`stop_words`. Begin with `folder`.
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
