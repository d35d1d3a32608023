"""The built-in contracts, a folder each; NumPy only."""
