"""The memory of one GPU: what lives there, what is left for requests, and how many fit."""
