"""How long things take on the devices at hand: callables handed in, timed one after the other inside one program."""

from hw.measuring.bench import Bench, normal, weight
from hw.measuring.chain import Chain, Place, chained
from hw.measuring.clock import median_seconds

__all__ = ["Bench", "Chain", "Place", "chained", "median_seconds", "normal", "weight"]
