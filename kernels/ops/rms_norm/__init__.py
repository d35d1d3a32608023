"""The op rms_norm."""
