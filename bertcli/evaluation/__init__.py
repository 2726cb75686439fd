"""Evaluation of models on labelled examples or on a search: metrics with confidence intervals.

`report` computes the metrics of a search, the intervals and the report; `evaluate` is the Python
API. The metrics for examples are defined by their task in `bertcli.tasks`. No module imports torch
at import time. Begin with `report`.
"""
