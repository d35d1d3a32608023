"""Hypothesis judges by the clock how tests make their data; on a loaded machine that says nothing of a test."""

from hypothesis import HealthCheck, settings

settings.register_profile("farm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("farm")
