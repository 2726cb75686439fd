"""Evaluation of models: metrics with intervals, on examples or on a search.

`report` has the metrics of a search, the intervals and the report; `evaluate` is the function for
Python. The metrics of examples are those of their task (`bertcli.tasks`). Without torch. Begin with
`report`.
"""
