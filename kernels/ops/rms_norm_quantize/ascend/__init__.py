"""The op rms_norm_quantize on Ascend's vector cores."""
