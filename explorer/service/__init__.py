"""From a step to a service: what a client sees when many requests run through an instance at once."""
