"""How good a model is: metrics, their intervals, and a model compared with examples.

`classes`, `scores`, `entities`, `answers` and `retrieval` are metrics of predictions and truths;
`predictions` asks a model, and `report` puts it together, with an interval of each metric. Without
torch; imports `tasks` and what is below. Begin with `report`.
"""
