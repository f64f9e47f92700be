"""Files that start servers: what is read back of them is what was meant, whatever the layout."""

import itertools
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engines import sglang
from explorer.engines.command import EngineName
from explorer.engines.export import ExportError, Form, Intent, Options, command, export, settings_of
from explorer.engines.export.answer import files_of
from explorer.engines.export.hosts import check_places, hosts_of
from explorer.engines.export.readback import read_back
from explorer.engines.settings import Settings
from explorer.engines.setup import Asked
from explorer.request import make_request
from layouts.serving.reserve import Role
from tests.engines.exported import GPUS, MODELS, exported, files_read_once, layouts_of, request_of

ENGINES = tuple(EngineName)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with files_read_once():
        yield


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=500, deadline=None, derandomize=True)
@given(data=st.data())
def test_what_is_written_reads_back_the_same(engine: EngineName, data: st.DataObject) -> None:
    model, gpus = data.draw(st.sampled_from(MODELS)), data.draw(st.sampled_from(GPUS))
    role = data.draw(st.sampled_from(Role))
    space = layouts_of(engine, model, gpus, role is Role.PREFILL)
    layout = space.layout(data.draw(st.integers(0, len(space) - 1)))
    requests, context = data.draw(st.integers(1, 256)), data.draw(st.integers(128, 131072))
    share = data.draw(st.integers(500, 990)) / 1000
    request = replace(request_of(model, gpus, role is Role.PREFILL), concurrency=requests, context=context)
    options = Options(engine, form=data.draw(st.sampled_from(Form)))
    server, servers, files = exported(request, layout, options, role, model, share)
    setups = read_back(files, Asked("h200"))
    groups = server.layout.replicas * layout.attn_dp
    for setup in setups:
        pools = setup.settings.pools
        assert setup.layout == replace(layout, replicas=layout.replicas // servers)
        assert (setup.broken, setup.launch.unknown, setup.launch.replaced) == ((), (), ())
        assert (pools.share, pools.context_length, setup.settings.role) == (share, context, role)
        if role is not Role.PREFILL:
            one = math.ceil(requests / groups) * (layout.attn_dp if engine is EngineName.SGLANG else 1)
            assert pools.max_running == one
    assert servers * server.hosts.all_gpus == gpus


@pytest.mark.parametrize("gpus", range(1, 129))
def test_gpus_of_all_hosts_are_those_of_the_plan(gpus: int) -> None:
    """No more than 8 a host, all alike, and as few hosts as that allows."""
    hosts = hosts_of(gpus, 8)
    assert (hosts.count * hosts.gpus, hosts.gpus <= 8) == (gpus, True)
    assert not any(gpus % fewer == 0 and gpus // fewer <= 8 for fewer in range(1, hosts.count))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gpus", [1, 2, 8, 16, 64, 128])
def test_gpus_asked_of_kubernetes(engine: EngineName, gpus: int) -> None:
    """One GPU limit a pod, times pods, is the layout's; a known planner asks for 256 where 16 are meant."""
    request = make_request("llama-3.1-8b" if gpus < 16 else "deepseek-v3", "h200", gpus, draft="none")
    text = f"attn_dp={gpus},ep={gpus}" if gpus > 8 else f"attn_tp={gpus}"
    layout = request.layout(text)
    _, servers, files = exported(request, layout, Options(engine, form=Form.KUBERNETES), Role.UNIFIED, "x", 0.8)
    (manifests,) = (list(yaml.safe_load_all(held)) for held in files.values())
    pods = [m for m in manifests if m["kind"] in ("StatefulSet", "Deployment")]
    asked = [
        pod["spec"]["replicas"] * container["resources"]["limits"]["nvidia.com/gpu"]
        for pod in pods
        for container in pod["spec"]["template"]["spec"]["containers"]
    ]
    assert (sum(asked), servers) == (gpus, 1)
    assert {pod["kind"] for pod in pods} == {"StatefulSet" if gpus > 8 else "Deployment"}


def test_hosts_of_a_script_differ_in_their_rank_alone() -> None:
    request = make_request("deepseek-v3", "h200", 32, draft="none")
    layout = request.layout("attn_dp=32,ep=32")
    _, _, files = exported(request, layout, Options(EngineName.SGLANG, address="10.0.0.1"), Role.UNIFIED, "m", 0.8)
    assert list(files) == [f"deepseek-v3-sglang-host{rank}.sh" for rank in range(4)]
    for rank, text in enumerate(files.values()):
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        flags = dict(itertools.pairwise(words))
        assert (flags["--nnodes"], flags["--node-rank"]) == ("4", str(rank))
        assert flags["--dist-init-addr"] == "10.0.0.1:20000"


def test_older_vllm_is_told_the_first_rank_of_each_host() -> None:
    """Data-parallel ranks go to hosts in order (vLLM 0.11.0); one that spans hosts needs Ray there."""
    request = make_request("deepseek-v3", "h200", 32, draft="none")
    options = Options(EngineName.VLLM, "0.11.0")
    layout = request.layout("attn_dp=16,attn_tp=2,ep=32,dispatch=all_gather,vocab_tp=2")
    _, _, files = exported(request, layout, options, Role.UNIFIED, "m", 0.8)
    for rank, text in enumerate(files.values()):
        words = text.replace("\\\n", " ").split()
        flags = dict(itertools.pairwise(words))
        assert flags["--data-parallel-size-local"] == "4"
        assert flags.get("--data-parallel-start-rank") == (str(4 * rank) if rank else None)
        assert ("--headless" in words) == (rank > 0)
    wide = request.layout("attn_dp=2,attn_tp=16,ep=32,dispatch=all_gather,vocab_tp=16")
    with pytest.raises(ExportError, match="a rank of 16 GPUs over hosts of 8 with Ray only"):
        exported(request, wide, options, Role.UNIFIED, "m", 0.8)
    with pytest.raises(ExportError, match="first of its 4 ranks on each host, which a pod cannot work out"):
        exported(request, layout, replace(options, form=Form.KUBERNETES), Role.UNIFIED, "m", 0.8)


@pytest.mark.parametrize(
    ("engine", "model", "text", "line"),
    [
        ("vllm", "deepseek-v3", "pp=3,attn_dp=4,attn_tp=2,ep=8,dispatch=all_gather", "= 6 GPUs over hosts of 8"),
        ("vllm", "deepseek-v3", "pp=3,attn_dp=1,attn_tp=8,ep=8,dispatch=all_gather", None),
        ("sglang", "llama-3.1-70b", "pp=2,attn_dp=3,attn_tp=4", "SGLang cannot spread pp=2 over 3 hosts"),
        ("sglang", "llama-3.1-70b", "pp=3,attn_dp=2,attn_tp=4", None),
        ("sglang", "llama-3.1-70b", "pp=6,attn_dp=1,attn_tp=4", None),
    ],
)
def test_ranks_lie_evenly_on_hosts(engine: str, model: str, text: str, line: str | None) -> None:
    """24 GPUs are three hosts of 8."""
    request = make_request(model, "h200", 24, draft="none")
    places = EngineName(engine), request.layout(text), hosts_of(24, 8)
    if line is None:
        check_places(*places)
        return
    with pytest.raises(ExportError, match=line):
        check_places(*places)


def test_names_suit_kubernetes() -> None:
    """A StatefulSet's name has at most 52 characters, a Service's begins with a letter."""
    request = make_request("deepseek-v3", "h200", 32, phase="prefill", draft="none")
    model = replace(request.model, name="01." + "Very-Long-" * 9)
    layout = request.layout("replicas=2,attn_dp=2,attn_tp=8,ep=16,padding=sum_len,dispatch=all_gather,vocab_tp=8")
    options = Options(EngineName.VLLM, form=Form.KUBERNETES)
    server, servers, _ = exported(request, layout, options, Role.PREFILL, "m", 0.8)
    (text,) = files_of(server, options, replace(request, model=model), servers).values()
    names = [manifest["metadata"]["name"] for manifest in yaml.safe_load_all(text)]
    assert len(names) == len(set(names)) == 8
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 52 for name in names)


def test_vllm_answers_clients_on_the_first_host() -> None:
    request = make_request("deepseek-v3", "h200", 16, draft="none")
    layout = request.layout("attn_dp=2,attn_tp=8,ep=16")
    _, _, files = exported(request, layout, Options(EngineName.VLLM), Role.UNIFIED, "m", 0.8)
    assert ["--headless" in text for text in files.values()] == [False, True]
    assert ["--port 8000" in text for text in files.values()] == [True, False]


@pytest.mark.parametrize(("engine", "first"), [(EngineName.SGLANG, 0), (EngineName.VLLM, 1)])
def test_pods_find_their_rank_and_each_other(engine: EngineName, first: int) -> None:
    """The index of a pod is its rank (vLLM's workers begin with 1), the first pod's name is where to meet."""
    request = make_request("deepseek-v3", "h200", 32, draft="none")
    layout = request.layout("attn_dp=4,attn_tp=8,ep=32,vocab_tp=8")
    _, _, files = exported(request, layout, Options(engine, form=Form.KUBERNETES), Role.UNIFIED, "m", 0.8)
    manifests = [manifest for text in files.values() for manifest in yaml.safe_load_all(text)]
    sets = [m for m in manifests if m["kind"] == "StatefulSet"]
    last = sets[-1]["spec"]
    (container,) = last["template"]["spec"]["containers"]
    assert last.get("ordinals", {"start": 0})["start"] == first
    assert first + last["replicas"] == 4
    assert container["args"][container["args"].index("--node-rank") + 1] == "$(NODE_RANK)"
    field = container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['apps.kubernetes.io/pod-index']"
    headless = next(m for m in manifests if m["spec"].get("clusterIP") == "None")
    assert headless["spec"]["publishNotReadyAddresses"] is True  # they wait for each other before they are ready
    flag = "--dist-init-addr" if engine is EngineName.SGLANG else "--master-addr"
    address = container["args"][container["args"].index(flag) + 1].partition(":")[0]
    assert address == f"{sets[0]['metadata']['name']}-0.{headless['metadata']['name']}"
    labels = [m["spec"]["template"]["metadata"]["labels"] for m in sets]
    assert all(headless["spec"]["selector"].items() <= each.items() for each in labels)


@pytest.mark.parametrize(
    ("engine", "model", "text", "line"),
    [
        ("sglang", "kimi-k3@article", "attn_dp=16,ep=16,weight_shard=8", "weight_shard=8: it has no flag"),
        ("vllm", "deepseek-v3", "attn_dp=16,ep=16,vocab_tp=16", "vocab_tp=16: it cuts the head"),
        ("vllm", "deepseek-v3", "attn_tp=16,ep=4,dispatch=all_gather", "ep=4: --enable-expert-parallel divides"),
        ("vllm", "deepseek-v3", "attn_tp=16,ep=16,vocab_tp=16", "dispatch=all_to_all: --all2all-backend exchanges"),
        (
            "sglang",
            "deepseek-v3",
            "attn_dp=8,attn_tp=2,ep=16,vocab_tp=4",
            "vocab_tp=4: it cuts the head over all",
        ),
    ],
)
def test_a_key_that_no_flag_says(engine: str, model: str, text: str, line: str) -> None:
    """One line with the key, why, and the nearest layout, which is valid and can be said."""
    request = make_request(model, "b200", 16)
    intent = Intent(EngineName(engine), Role.UNIFIED, model, 0.8)
    with pytest.raises(ExportError) as caught:
        settings_of(request, request.layout(text), intent)
    message = str(caught.value)
    assert line in message and "\n" not in message
    settings_of(request, request.layout(message.rpartition("nearest that it can say: ")[2]), intent)


def test_replicas_are_servers_where_one_command_cannot_start_them() -> None:
    """Of a dense model vLLM starts all of them, SGLang those of one host; with experts vLLM's share them."""
    dense = make_request("llama-3.1-8b", "h200", 16, draft="none")
    for engine, layout, servers in (
        (EngineName.VLLM, "replicas=16", 1), (EngineName.SGLANG, "replicas=16", 16),
    ):  # fmt: skip
        assert exported(dense, dense.layout(layout), Options(engine), Role.UNIFIED, "m", 0.8)[1] == servers
    sparse = make_request("qwen3-30b-a3b-fp8", "h200", 8, draft="none")
    layout = sparse.layout("replicas=4,attn_tp=2,dispatch=all_gather")
    for engine, servers in ((EngineName.VLLM, 4), (EngineName.SGLANG, 1)):
        assert exported(sparse, layout, Options(engine), Role.UNIFIED, "m", 0.8)[1] == servers


def test_servers_that_share_nothing_are_replicas_of_a_deployment() -> None:
    request = make_request("qwen3-30b-a3b-fp8", "h200", 8, draft="none")
    layout = request.layout("replicas=4,attn_tp=2,dispatch=all_gather")
    _, _, files = exported(request, layout, Options(EngineName.VLLM, form=Form.KUBERNETES), Role.UNIFIED, "m", 0.8)
    (text,) = files.values()
    deployment = next(m for m in yaml.safe_load_all(text) if m["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (deployment["spec"]["replicas"], container["resources"]["limits"]["nvidia.com/gpu"]) == (4, 2)


@pytest.mark.parametrize(("flag", "value"), [("attn_dp_size", 8), ("mem_fraction_static", 0.5), ("dp_size", 2)])
def test_a_file_that_means_something_else_is_never_handed_out(
    flag: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a writer that is wrong on purpose."""

    def wrong(settings: Settings) -> object:
        flags, env = sglang.write(settings)
        return {**flags, flag: value}, env

    monkeypatch.setitem(command.WRITERS, EngineName.SGLANG, wrong)
    request = make_request("deepseek-v3", "h200", 16, mem_fraction=0.8, draft="none", concurrency=64)
    layout = request.layout("attn_dp=16,ep=16")
    with pytest.raises(ExportError, match="internal error: what was written for attn_dp=16,ep=16 reads back"):
        export(request, layout, Options(EngineName.SGLANG), Asked("h200", "deepseek-v3"))


def test_paths_with_blanks_quotes_and_dollars_stay_words() -> None:
    """What a shell or Kubernetes would expand is read back as it was given."""
    request = make_request("llama-3.1-8b", "h200", 2, draft="none")
    path = "/data/it's $HOME; $(touch x) `y` \\ Llama-3.1-8B"
    for form in Form:
        options = Options(EngineName.SGLANG, form=form)
        _, _, files = exported(request, request.layout("attn_tp=2"), options, Role.UNIFIED, path, 0.8)
        (text,) = files.values()
        if form is Form.SCRIPT:
            assert shlex.quote(path) in text
            assert read_back(files, Asked("h200", model="llama-3.1-8b"))[0].launch.model == path
        else:
            held = list(yaml.safe_load_all(text))[-1]["spec"]["template"]["spec"]["containers"][0]["args"]
            assert path.replace("$(", "$$(") in held


def test_whole_exports() -> None:
    """Draft, formats and dispatched rows of a build, checked on their way; the document holds the files."""
    request = make_request("kimi-k3@article", "b200", 16, context=100_000, concurrency=320)
    layout = request.layout("attn_dp=2,dcp=8,ep=16,weight_shard=1,vocab_tp=16")
    made = export(request, layout, Options(EngineName.SGLANG, role=Role.DECODE), Asked("b200", "kimi-k3@article"))
    pools, spec = made.server.settings.pools, made.server.settings.speculation
    # 160 requests of a group verify 5 rows each, spread over 8 ranks: 100 rows, below the 144 of the build
    assert (pools.max_running, pools.dispatch_tokens, spec and spec.verify) == (320, 144, 5)
    assert {file["name"]: file["text"] for file in made.document()["files"]} == made.files
    assert dict(made.server.settings.formats) == {"kv": "fp8"}


def test_what_a_server_is_told_of_its_load() -> None:
    """By hand: 2,001 requests are 251 for each of 8 groups, whose 502 rows two ranks dispatch; graphs stop at 512."""
    request = make_request("deepseek-v3", "h200", 16, draft="mtp", verify_width=2, concurrency=2001)
    layout = request.layout("attn_dp=8,attn_tp=2,ep=16,vocab_tp=2")

    def told(engine: EngineName, requests: int, role: Role = Role.UNIFIED) -> Settings:
        return settings_of(replace(request, concurrency=requests), layout, Intent(engine, role, "deepseek-v3", 0.8))

    few, many = (told(EngineName.SGLANG, requests) for requests in (2001, 6000))
    assert (few.pools.max_running, few.pools.graph_limit, few.pools.dispatch_tokens) == (2008, 251, 251)
    assert (many.pools.max_running, many.pools.graph_limit, many.pools.dispatch_tokens) == (6000, 512, 750)
    assert (few.pools.chunk, told(EngineName.SGLANG, 1, Role.DECODE).pools.chunk) == (8192, None)
    assert told(EngineName.SGLANG, 1).pools.dispatch_tokens == 128  # what is never less
    assert few.degrees.dense_tp == 16  # nothing is said: dense MLPs over all of tp are the engine's default
    assert not {"enable_dense_mlp_attn_tp", "moe_dense_tp_size"} & set(sglang.write(few)[0])
    # vLLM's are of a group: its part of a chunk of 8,192, or a row of each request and its draft
    few, many = (told(EngineName.VLLM, requests) for requests in (2001, 6000))
    assert (few.pools.max_running, few.pools.chunk) == (251, 1024)
    assert (many.pools.max_running, many.pools.chunk) == (750, 1500)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_share_leaves_room_for_graphs_and_buffers(engine: EngineName) -> None:
    """What `check` says of the file: more is free than what lives there, and not much more."""
    request = make_request("deepseek-v3", "h200", 16, concurrency=512, draft="none")
    made = export(request, request.layout("attn_dp=16,ep=16"), Options(engine), Asked("h200", "deepseek-v3"))
    up = made.start
    assert up.starts and up.share == made.server.settings.pools.share
    assert up.reserved_high <= up.left < up.reserved_high + (9 << 30)
    assert up.running_instance == 512
    stated = replace(request, mem_fraction=0.5)
    if engine is EngineName.SGLANG:
        again = export(stated, request.layout("attn_dp=16,ep=16"), Options(engine), Asked("h200", "deepseek-v3"))
        assert again.server.settings.pools.share == 0.5


def test_requests_that_do_not_fit_are_told() -> None:
    request = make_request("llama-3.1-70b", "h200", 2, concurrency=512, context=131072)
    made = export(request, request.layout("attn_tp=2"), Options(EngineName.SGLANG), Asked("h200", "llama-3.1-70b"))
    # 282 GiB less 141 of weights hold about 3 requests of 131,072 tokens of 320 KiB: 40 GiB each
    runs = made.start.running_instance
    assert 2 <= runs <= 3
    assert any(f"{runs} of 512 requests run at once, as kv_tokens allows" in note for note in made.notes)


def test_what_the_engine_refuses_is_said_before_a_file_is_there() -> None:
    """SGLang 0.5.23 runs a draft beside pipeline stages on prefill servers only."""
    request = make_request("deepseek-v3", "h200", 16, draft="mtp", verify_width=2)
    layout = request.layout("pp=2,attn_tp=8,ep=8,dispatch=all_gather")
    with pytest.raises(ExportError, match="refuses this layout: --speculative-algorithm NEXTN with --pp-size 2"):
        export(request, layout, Options(EngineName.SGLANG), Asked("h200", "deepseek-v3"))


def test_online_formats_and_formats_that_no_checkpoint_has() -> None:
    """Engines quantise a bf16 checkpoint to fp8 as a whole; a part of it they do not."""
    whole = "attention=fp8,dense=fp8,shared=fp8,experts=fp8,kv=fp8"
    request = make_request("llama-3.1-8b", "h200", 1, precision=whole, draft="none")
    intent = Intent(EngineName.SGLANG, Role.UNIFIED, "llama-3.1-8b", 0.8)
    said = settings_of(request, request.layout("attn_tp=1"), intent).formats
    assert said == {"kv": "fp8", "weights": "fp8"}
    part = make_request("llama-3.1-8b", "h200", 1, precision="attention=fp8", draft="none")
    with pytest.raises(ExportError, match="precision attention=fp8 is not what llama"):
        settings_of(part, part.layout("attn_tp=1"), intent)
