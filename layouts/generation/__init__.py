"""Requests through a decoder: prefill, verify, accept, roll back; greedy text from it."""

from layouts.generation.checks import SessionError
from layouts.generation.greedy import Text, generate
from layouts.generation.lookup import prompt_lookup
from layouts.generation.session import Capacity, Request, Session

__all__ = ["Capacity", "Request", "Session", "SessionError", "Text", "generate", "prompt_lookup"]
