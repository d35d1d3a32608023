"""Which of two arms is faster, and how sure: rounds, noise, verdicts.  Pure."""
