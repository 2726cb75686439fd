"""Attention as pictures: a self-contained page; SVG, PNG and PDF with matplotlib; and as numbers.

Begin with `picture`, which makes the contents of a file. `attention_maps` are the numbers with
their labels, `page` and `attention_figure` draw them in the `colours` of weights; `drawing` readies
matplotlib, also for the curves of a training.
"""
