"""The op rms_norm_quantize."""
