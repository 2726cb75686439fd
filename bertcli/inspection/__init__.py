"""What is in a model folder or in a file of vectors, without torch and without loading it.

    report = inspect_folder(find_model("bert-base-uncased", files=MODEL_FILES))
    report.parameters["without_pooler"]   # 108891648

A missing part of a folder is a warning in the report, a broken one is an error.
"""

from bertcli.inspection.folder import FolderReport, inspect_folder
from bertcli.inspection.tokenizer_report import tokenizer_details
from bertcli.inspection.vector_file import FILE_SUFFIXES, FileReport, inspect_file

__all__ = [
    "FILE_SUFFIXES",
    "FileReport",
    "FolderReport",
    "inspect_file",
    "inspect_folder",
    "tokenizer_details",
]
