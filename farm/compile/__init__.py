"""Offline compilation of a matrix for targets that are not here."""
