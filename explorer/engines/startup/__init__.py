"""What a server allocates when it starts, by the rules of its engine: pools, the clamps on requests, what is left."""

from explorer.engines.startup.found import Given, Startup
from explorer.engines.startup.start import startup

__all__ = ["Given", "Startup", "startup"]
