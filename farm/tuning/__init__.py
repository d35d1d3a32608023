"""The search for launch configurations: which candidates a round measures, what is accepted, and the table of a search.

Candidates are ordinary cells: provider `farm` in a mode that states a launch in full.  A run measures and judges them
like all others, so what the farm refuses cannot win.
"""
