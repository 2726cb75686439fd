"""`bertcli export`: a model as a graph for OpenVINO or ONNX Runtime."""

from typing import Annotated, Literal

from bertcli.cli.options.common import ConsoleOptions, ModelOptions
from bertcli.cli.options.groups import OptionGroup, option, record
from bertcli.cli.options.pretrain import FolderOptions


class GraphOptions(OptionGroup):
    """What is made."""

    to: Annotated[
        Literal["openvino", "onnx"],
        option("File format: OpenVINO IR or ONNX (extra onnx)."),
    ] = "openvino"
    dtype: Annotated[
        Literal["float32", "bfloat16", "int8"],
        option(
            "Number format of the weights. int8: OpenVINO only, faster, approximate (extra int8)."
        ),
    ] = "float32"


def export(
    model: ModelOptions, graph: GraphOptions, folder: FolderOptions, messages: ConsoleOptions
) -> None:
    """Export a model as one graph, from padded ids to sentence vectors or logits.

    The folder also holds the tokenizer and the configs: -m DIR runs it. Its accuracy is measured
    on a sample, and written to manifest.json.

    $ bertcli export -m sentence-transformers/all-MiniLM-L6-v2 -o minilm-int8 --dtype int8
    $ bertcli embed -m minilm-int8 -i texts.txt -o vectors.npy
    """
    from bertcli.hub import MODEL_FILES
    from bertcli.tasks.export import ExportOptions, export

    console, options = messages.console(), record(ExportOptions, graph)
    found = model.folder(MODEL_FILES)
    manifest = export(found, folder.output, options, overwrite=folder.overwrite, tell=console)
    accuracy = manifest["accuracy"]
    console.note(
        f"{folder.output / options.file}: cosine to the model {accuracy['worst_cosine']:.6f} at "
        f"worst, {accuracy['mean_cosine']:.6f} on average, largest difference "
        f"{accuracy['largest_difference']:.1e}, on {accuracy['texts']} texts"
    )
