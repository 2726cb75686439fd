"""How good a model is: metrics, their intervals, and a model compared with examples.

`classes`, `scores`, `entities`, `answers` and `retrieval` are metrics of predictions and truths;
`predictions` asks a model, `search` puts a search to it, `bootstrap` gives each metric an interval,
`report` puts it together. Without torch; imports `tasks` and what is below. Begin with `report`.
"""
