"""Greedy text, one token a step or several: a step scores the last token and a draft behind it, and of the draft is
kept what the model itself would have said. The text is the same whatever the draft."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from layouts.generation.checks import require_rows, require_whole
from layouts.generation.lookup import prompt_lookup
from layouts.generation.session import Request, Session

Draft = Callable[[Sequence[int], int], list[int]]


@dataclass(frozen=True)
class Text:
    """What was generated for each prompt, in how many steps behind the prefill, and the drafted tokens that were
    proposed and kept in them."""

    tokens: tuple[tuple[int, ...], ...]
    steps: int
    drafted: int
    kept: int

    @property
    def accept_length(self) -> float:
        """Tokens that a request gains in a step, on average; 0 without a step."""
        rows = sum(map(len, self.tokens)) - len(self.tokens)
        return rows / self.request_steps if self.request_steps else 0.0

    @property
    def request_steps(self) -> int:
        """Steps of all requests together."""
        return sum(map(len, self.tokens)) - len(self.tokens) - self.kept


def generate(
    session: Session,
    prompts: Sequence[Sequence[int]],
    count: int,
    width: int = 1,
    draft: Draft = prompt_lookup,
    chunk: int | None = None,
) -> Text:
    """`count` tokens behind each prompt, with `width` rows of a request verified in a step. A prompt and its text need
    room for `count + width - 2` tokens beyond the prompt.

    Prompts go in together, `chunk` tokens at a time (whole if None). PoolError where the session has no room for them,
    SessionError for a prompt without tokens or with strange ones; its requests are gone from the session either way.
    """
    for name, value in (
        ("prompts", len(prompts)),
        ("count", count),
        ("width", width),
        ("chunk", 1 if chunk is None else chunk),
    ):
        require_whole(name, value, 1)
    requests: list[Request] = []
    try:
        for _ in prompts:
            requests.append(session.admit())
        return _generated(session, dict(zip(requests, map(list, prompts), strict=True)), count, width, draft, chunk)
    finally:
        for request in requests:
            session.release(request)


def _generated(
    session: Session, texts: dict[Request, list[int]], count: int, width: int, draft: Draft, chunk: int | None
) -> Text:
    done = {request: [token] for request, token in _prefilled(session, texts, chunk).items()}
    steps = drafted = kept = 0
    while running := [request for request in texts if len(done[request]) < count]:
        rows = {}
        for request in running:
            text = texts[request] + done[request]
            rows[request] = [text[-1], *draft(text, width - 1)]
        scored = session.verify(rows)
        accepted = {}
        for request in running:
            said, guessed = scored[request].tokens.tolist(), rows[request][1:]
            agreed = next((i for i, guess in enumerate(guessed) if guess != said[i]), len(guessed))
            gained = said[: agreed + 1][: count - len(done[request])]
            done[request] += gained
            accepted[request], kept, drafted = len(gained), kept + len(gained) - 1, drafted + len(guessed)
        session.accept(accepted)
        steps += 1
    return Text(tuple(tuple(done[request]) for request in texts), steps, drafted, kept)


def _prefilled(session: Session, texts: dict[Request, list[int]], chunk: int | None) -> dict[Request, int]:
    """Every prompt cached; the first token behind each."""
    longest = require_rows(texts, session.vocab)
    width, first = min(chunk or longest, longest), {}
    for start in range(0, longest, width):
        parts = {request: text[start : start + width] for request, text in texts.items() if text[start:]}
        scored = session.prefill(parts, width)
        ended = {r: s for r, s in scored.items() if len(texts[r]) <= start + width}
        first |= {request: int(one.tokens[-1]) for request, one in ended.items()}
    return first
