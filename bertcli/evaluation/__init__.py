"""How good a model is: metrics, their intervals, and a model compared with examples.

`metrics` compares predictions with truths; `report` asks a model, or one that searches, and puts it
together, with an interval of each metric; `evaluate` is that from Python. Without torch; imports
`tasks` and what is below. Begin with `report`.
"""
