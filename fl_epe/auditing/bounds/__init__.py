"""Lower bounds on ε that hold at a stated confidence, one file a bound.

A new bound is a function of a ``Sample`` in a file here, and one entry in ``by_name.BOUNDS``.
"""
