"""A machine measured: its kernels and exchanges timed one after the other, and curves fitted to what they took."""
