"""Predicted against measured: slices of three models on H200s, so far on two of them, under two ways to cut them."""
