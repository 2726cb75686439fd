"""A model made into another: a graph that other libraries run, or a table of token vectors.

    export(find_model("DIR"), Path("OUT"), ExportOptions("onnx"))

`folder` writes a folder with the graph of a model with a head, or of a sentence model, and measures
it; `graphs` are such graphs as ONNX and in 8 bits. `distil` makes a static student. Begin with
`folder`.
"""
