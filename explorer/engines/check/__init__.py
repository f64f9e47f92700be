"""What a launch command comes to: its layout and rules, its memory, what clients would see, what would be better."""

from explorer.engines.check.answer import Check, Served, check

__all__ = ["Check", "Served", "check"]
