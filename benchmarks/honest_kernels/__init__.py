"""Honest kernels whose rounding errors calibrate the float64 rule: the ways in which an engineer may write them."""
