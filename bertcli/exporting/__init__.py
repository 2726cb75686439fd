"""Convert a model: to a graph that other libraries run, or to a table of token vectors.

    export(find_model("DIR"), Path("OUT"), ExportOptions("onnx"))

`folder` exports a model with a head, or a sentence model, to a folder with a graph and measures its
accuracy; `graphs` quantizes graphs to 8 bits and writes them as OpenVINO IR or ONNX. `distil` makes
a static student model. Start with `folder`.
"""
