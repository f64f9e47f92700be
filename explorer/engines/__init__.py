"""The serving engines' language: their commands, logs, benchmarks and flags, read and written."""
