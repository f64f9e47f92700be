"""A machine's curves adjusted to what was measured on it: few factors, held near the public fits."""
