"""How good a model is: metrics, their intervals, and a model compared with examples.

`classes` (accuracy, F1, calibration) and `scores` (correlations) are numbers of predictions and
truths; `bootstrap` gives each an interval. Only numpy; imports `tasks` and what is below. Begin
with `classes`.
"""
