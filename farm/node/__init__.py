"""The nodes of a cluster: their configuration (`config`), how they join, and the list of them."""
