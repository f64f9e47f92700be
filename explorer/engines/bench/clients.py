"""What each client writes, as runs.

Read in SGLang 0.5.23 (`sglang/benchmark/serving.py`, `one_batch.py`, `one_batch_server.py`) and vLLM 0.33.0
(`vllm/benchmarks/serve.py`, `sweep/serve.py`, `latency.py`, `throughput.py`, `forward/main.py`, `lib/utils.py`).
"""

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final

from explorer.engines.bench.fields import (
    Fields,
    Unusable,
    count,
    needed,
    optional,
    request_rate,
    shown,
    text,
    times,
)
from explorer.engines.bench.run import BatchRun, ForwardRun, Origin, Run, ServeRun

MOST_REQUESTS: Final = 1 << 16  # of a batch
_VLLM_MARK: Final = "endpoint_type"
# Of SGLang's data sets, those whose lengths `random_range_ratio` bounds.
_DRAWN: Final = ("random", "image")

_SERVE: Final = "run the client of a server: sglang.bench_serving or vllm bench serve --save-result"
# A key that tells what wrote a value that holds no run, and why it is none.
_OTHERS: Final[Mapping[str, str]] = {
    "avg_latency": f"vllm bench latency writes neither batch size nor lengths: {_SERVE}",
    "tokens_per_second": f"vllm bench throughput writes prompts and answers in one sum: {_SERVE}",
    "last_gen_throughput": f"an offline throughput says nothing of single requests: {_SERVE}",
    "average_concurrency": "steady-state figures lack the latencies: give the client's own results beside them",
    "benchmark": "a record for PyTorch's dashboard: give the file without .pytorch in its name",
    "error_type": "a sweep's record of a run that failed: leave it out",
}


def run_of(value: Any, index: int, line: int) -> Run:
    """A value of a file as a run; raises Unusable with the reason where it is none."""
    if not isinstance(value, Mapping):
        raise Unusable("is no object: give a benchmark's results, a run a line")
    for keys, read in _READERS:
        if keys <= value.keys():
            return read(value, _origin(value, index, line))
    other = next((reason for key, reason in _OTHERS.items() if key in value), None)
    raise Unusable(other or f"holds none of the fields of a benchmark ({', '.join(sorted(_KNOWN))}): {_SERVE}")


def _origin(fields: Fields, index: int, line: int) -> Origin:
    info = fields.get("server_info")
    info = info if isinstance(info, Mapping) else None
    decode = info.get("decode") if info else None  # of a router: the servers of either kind
    own = decode[0] if isinstance(decode, list) and decode and isinstance(decode[0], Mapping) else info or {}
    return Origin(
        index=index,
        line=line,
        backend=text(fields, "backend") or text(fields, _VLLM_MARK) or "",
        engine_version=text(own, "version"),
        model=text(fields, "model_id") or text(own, "model_path"),
        date=_date(text(fields, "date")),
        server_info=info,
    )


def _date(stamp: str | None) -> str | None:
    """The day of a time stamp as vLLM writes it (20261130-061500)."""
    try:
        return None if stamp is None else datetime.datetime.strptime(stamp[:8], "%Y%m%d").date().isoformat()
    except ValueError:
        return None


def _serve(fields: Fields, origin: Origin) -> ServeRun:
    """SGLang's `bench_serving` and `vllm bench serve`, which name their figures alike."""
    completed = count(fields, "completed")
    prompts = needed(fields, "total_input_tokens") / completed
    answers = needed(fields, "total_output_tokens") / completed
    if answers >= 2:
        needed(fields, "mean_tpot_ms")
    ttft, tpot = times(fields, "ttft"), times(fields, "tpot")
    duration = optional(fields, "duration")
    limit = optional(fields, "max_concurrency")
    return ServeRun(
        origin=origin,
        request_rate=request_rate(fields),
        max_concurrency=None if limit is None else count(fields, "max_concurrency"),
        in_flight=optional(fields, "concurrency") or _in_flight(fields, completed, duration),
        completed=completed,
        input_tokens=prompts,
        output_tokens=answers,
        shortest=_shortest(fields),
        duration=duration,
        ttft=ttft,
        tpot=tpot,
        itl=times(fields, "itl"),
        rate=optional(fields, "output_throughput"),
        accept_length=optional(fields, "accept_length") or optional(fields, "spec_decode_acceptance_length"),
    )


def _in_flight(fields: Fields, completed: int, duration: float | None) -> float | None:
    """Little's law over a run: requests that were answered, each as long as it took."""
    each = optional(fields, "mean_e2el_ms") or optional(fields, "mean_e2e_latency_ms")
    return None if each is None or duration is None else completed * each / 1e3 / duration


def _shortest(fields: Fields) -> float | None:
    """The least length drawn over the longest. SGLang draws from a share of the stated length up to it
    (`datasets/common.py`, compute_random_lens); vLLM as far below it as above (`datasets.py`, --random-range-ratio),
    and writes the share only where it is a sweep's parameter."""
    try:
        ratio = float(fields.get("random_range_ratio"))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        return None
    if not 0.0 <= ratio <= 1.0:
        return None
    if _VLLM_MARK in fields:
        return (1.0 - ratio) / (1.0 + ratio)
    data = text(fields, "dataset_name")
    return ratio if data is None or data.startswith(_DRAWN) else None


def _one_batch(fields: Fields, origin: Origin) -> BatchRun:
    """SGLang's `bench_one_batch`: the model runner alone."""
    return BatchRun(
        origin=origin,
        served=False,
        batch=count(fields, "batch_size"),
        input_tokens=count(fields, "input_len"),
        output_tokens=count(fields, "output_len"),
        prefill=needed(fields, "prefill_latency"),
        step=optional(fields, "median_decode_latency"),
        accept_length=None,
    )


def _one_batch_server(fields: Fields, origin: Origin) -> BatchRun:
    """SGLang's `bench_one_batch_server`; -1 stands for what it could not learn."""
    answer, first = count(fields, "output_len"), needed(fields, "last_ttft")
    later = needed(fields, "latency") - first
    accepted = None if fields.get("acc_length") == -1 else optional(fields, "acc_length")
    return BatchRun(
        origin=origin,
        served=True,
        batch=count(fields, "batch_size"),
        input_tokens=count(fields, "input_len"),
        output_tokens=answer,
        prefill=first,
        step=later / (answer - 1) if answer > 1 and later > 0 else None,
        accept_length=accepted,
    )


def _forward(fields: Fields, origin: Origin) -> ForwardRun:
    """A case of `vllm bench forward`: requests are those of one data-parallel rank."""
    requests, ranks = fields["requests"], fields.get("ranks")
    if not isinstance(requests, list) or not 0 < len(requests) <= MOST_REQUESTS:
        raise Unusable(f"requests = {shown(requests)}: must be a list of at most {MOST_REQUESTS:,} requests")
    if not all(isinstance(request, Mapping) for request in requests):
        raise Unusable("requests: each must be an object, as vllm bench forward writes it")
    first = ranks[0] if isinstance(ranks, list) and ranks and isinstance(ranks[0], Mapping) else {}
    scope = first.get("timing_scope")
    return ForwardRun(
        origin=origin,
        name=text(fields, "case") or f"case {origin.index}",
        rows=tuple(count(request, "query_len") for request in requests),
        context=tuple(count(request, "kv_len") for request in requests),
        drafts=tuple(int(optional(request, "num_draft_tokens") or 0) for request in requests),
        ranks=max(len(ranks), 1) if isinstance(ranks, list) else 1,
        drafter=None if scope is None else scope == "target_and_drafter",
        seconds=needed(fields, "median_us") / 1e6,
    )


_READERS: Final[tuple[tuple[frozenset[str], Callable[[Fields, Origin], Run]], ...]] = (
    (frozenset({"case", "requests", "median_us"}), _forward),
    (frozenset({"batch_size", "prefill_latency"}), _one_batch),
    (frozenset({"batch_size", "last_ttft"}), _one_batch_server),
    (frozenset({"completed"}), _serve),
)
_KNOWN: Final = frozenset({"completed", "mean_tpot_ms", "batch_size", "prefill_latency", "median_us"})
