"""Kubernetes manifests: a Deployment for a server of one host, StatefulSets and a headless Service for several.

The rank of a host is the index of its pod, which the label `apps.kubernetes.io/pod-index` holds (Kubernetes 1.28 on).
"""

from typing import Any, Final

import yaml

from explorer.engines.command.launch import EngineName
from explorer.engines.export.command import Command, Server, command_of
from explorer.engines.export.hosts import RENDEZVOUS

Manifest = dict[str, Any]
IMAGES: Final = {EngineName.SGLANG: "lmsysorg/sglang:v{}", EngineName.VLLM: "vllm/vllm-openai:v{}"}
_RANK: Final = "NODE_RANK"
_INDEX: Final = "metadata.labels['apps.kubernetes.io/pod-index']"


def manifest(server: Server, name: str, servers: int, image: str | None) -> str:
    """The manifests of `servers` copies of a server as one YAML text."""
    image = image or IMAGES[server.engine].format(server.version.number)
    if server.hosts.count == 1:
        parts = [_service(name, name, server), _deployment(server, name, servers, image)]
    else:
        names = [name] if servers == 1 else [f"{name}-{at}" for at in range(servers)]
        parts = [part for each in names for part in _of_hosts(server, each, image)]
    return yaml.safe_dump_all(parts, sort_keys=False, width=1000)


def _of_hosts(server: Server, name: str, image: str) -> list[Manifest]:
    """A server of several hosts. vLLM's hosts but the first answer no clients and are a set of their own."""
    hosts = server.hosts.count
    if server.engine is EngineName.SGLANG:
        sets = [_set(server, name, name, f"$({_RANK})", hosts, image)]
    else:
        sets = [
            _set(server, f"{name}-head", name, 0, 1, image),
            _set(server, f"{name}-worker", name, f"$({_RANK})", hosts - 1, image),
        ]
        sets[1]["spec"]["ordinals"] = {"start": 1}  # a worker's index is its rank
    first = sets[0]["metadata"]["name"]
    return [_headless(name), _service(f"{name}-api", first, server, pod=f"{first}-0"), *sets]


def _set(server: Server, name: str, group: str, rank: int | str, replicas: int, image: str) -> Manifest:
    first = name if server.engine is EngineName.SGLANG else f"{group}-head"
    command = command_of(server, rank, f"{first}-0.{group}")
    labels = {"app": name, "group": group}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "serviceName": group,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": dict(labels)},
            "template": _pod(server, labels, command, image, ranked=isinstance(rank, str)),
        },
    }


def _deployment(server: Server, name: str, servers: int, image: str) -> Manifest:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": servers,
            "selector": {"matchLabels": dict(labels)},
            "template": _pod(server, labels, command_of(server, 0, ""), image, ranked=False),
        },
    }


def _pod(server: Server, labels: dict[str, str], command: Command, image: str, ranked: bool) -> Manifest:
    env: list[Manifest] = [{"name": name, "value": value} for name, value in command.env.items()]
    if ranked:
        env.insert(0, {"name": _RANK, "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}})
    container: Manifest = {
        "name": str(server.engine),
        "image": image,
        "command": [_literal(word) for word in command.program],
        "args": [_literal(word) for words in command.flags for word in words],
        **({"env": env} if env else {}),
        "ports": [{"name": "http", "containerPort": server.port}],
        "resources": {"limits": {"nvidia.com/gpu": server.hosts.gpus}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return {"metadata": {"labels": dict(labels)}, "spec": {"containers": [container], "volumes": volumes}}


def _literal(word: str) -> str:
    """A word in which Kubernetes expands nothing but our own variable."""
    return word if word == f"$({_RANK})" else word.replace("$(", "$$(")


def _service(name: str, app: str, server: Server, pod: str | None = None) -> Manifest:
    """Where clients come in: every copy, or the pod of rank 0."""
    selector = {"app": app} | ({"statefulset.kubernetes.io/pod-name": pod} if pod else {})
    ports = [{"name": "http", "port": server.port, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": selector, "ports": ports},
    }


def _headless(group: str) -> Manifest:
    """Names of the pods, known before any of them is ready: they wait for each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": group},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"group": group},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS}],
        },
    }
