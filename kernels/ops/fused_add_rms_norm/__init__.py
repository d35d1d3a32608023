"""The op fused_add_rms_norm."""
