"""Pictures of results, and the report.

A ``plot_...`` function draws one result on axes of its own or on those given (``ax=``), and returns the axes;
``save_picture`` writes PNG, SVG and PDF. Pictures fit a column of a paper (3.3 inches) or a page, are read in
print without colours, and keep to a few signs: blue facilitates and orange interferes in every map, grey is random
heads, and a head has the same colour and marker everywhere:

>>> from cs_heads.units import Head
>>> from cs_heads.plot.style import head_look
>>> head_look(Head(2, 6)) == head_look(Head.parse("L2H6"))
True

``write_report`` puts everything on one page that opens without a network: the heads and the verdict first, then
what broke, maps, curves, attention patterns, cost, and how to do it again.
"""
