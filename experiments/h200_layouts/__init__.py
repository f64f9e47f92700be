"""Predicted against measured: slices of three models on H200s, on one and, under seven ways to cut them, on two."""
