"""Public runs beside predictions: read, counted once, scored."""
