"""Kernels of others at the shapes of our benchmarks, timed on the same GPU, and what they publish of themselves."""
