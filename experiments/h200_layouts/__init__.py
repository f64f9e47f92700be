"""Predicted against measured: slices of three models on one and two H200s, under every way to cut them."""
