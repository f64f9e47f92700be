"""A closed loop of clients on one instance, event by event: what the formulas of `explorer.service.queue` stand for."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from explorer.service.engine import Policy


@dataclass(frozen=True)
class Server:
    """Constant seconds of a decode step and of a prompt token; tokens of a prefill step; requests that run at once."""

    policy: Policy
    step: float
    token: float
    chunk: int
    capacity: int


class Seen(NamedTuple):
    """Means over all requests, seconds; when the last one ended; how many decode steps were made."""

    ttft: float
    tpot: float
    end: float
    steps: int


@dataclass
class _Request:
    client: int
    sent: float
    prompt: int
    answer: int
    first: float = np.nan


def simulate(
    server: Server, prompts: Int[np.ndarray, "clients rounds"], answers: Int[np.ndarray, "clients rounds"]
) -> Seen:
    """Every client sends its first request at once, and each further one as the one before it ends.

    An answer is the tokens after the first, which the prompt's last chunk yields.
    """
    clients, rounds = prompts.shape
    now, steps = 0.0, 0
    sent = np.zeros(clients, int)
    waiting, computing, decoding = deque[_Request](), deque[_Request](), list[_Request]()
    ttft, tpot = list[float](), list[float]()

    def send(client: int) -> None:
        if sent[client] < rounds:
            i = sent[client]
            waiting.append(_Request(client, now, int(prompts[client, i]), int(answers[client, i])))
            sent[client] += 1

    for client in range(clients):
        send(client)
    while waiting or computing or decoding:
        while waiting and len(computing) + len(decoding) < server.capacity:
            computing.append(waiting.popleft())
        left, seconds, done = server.chunk, 0.0, list[_Request]()
        while computing and left:
            taken = min(left, computing[0].prompt)
            computing[0].prompt -= taken
            left, seconds = left - taken, seconds + taken * server.token
            if computing[0].prompt == 0:
                done.append(computing.popleft())
        served = [] if seconds and server.policy is Policy.PREFILL_FIRST else list(decoding)
        now += seconds + (server.step if served else 0.0)
        steps += bool(served)
        for request in served:
            request.answer -= 1
            if request.answer == 0:
                decoding.remove(request)
                tpot.append(now - request.first)
                send(request.client)
        for request in done:
            request.first = now
            ttft.append(now - request.sent)
            decoding.append(request)
    return Seen(float(np.mean(ttft)), float(np.sum(tpot) / answers.sum()), now, steps)


def drawn(clients: int, rounds: int, longest: int, shortest: float, seed: int) -> Int[np.ndarray, "clients rounds"]:
    """Whole numbers drawn evenly between a share of the longest and the longest."""
    return np.random.default_rng(seed).integers(round(longest * shortest), longest + 1, (clients, rounds))
