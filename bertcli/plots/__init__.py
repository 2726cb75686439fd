"""Attention as pictures: a self-contained page; SVG, PNG and PDF with matplotlib; and as numbers.

Begin with `picture`, which makes the contents of a file, a page too. `attention_maps` are the
numbers with their labels, `attention_figure` draws them; `drawing` readies matplotlib, also for the
curves of a training, and has the colours of weights.
"""
