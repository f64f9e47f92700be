"""Public tables of kernels and exchanges as rows that the time model can be fitted to, and the fits themselves."""
