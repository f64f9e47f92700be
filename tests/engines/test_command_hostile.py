"""Commands and files that mean harm: nothing runs, memory stays bounded, the error is one line."""

import os
import pathlib
import subprocess
import time

import pytest

from explorer.engines.command import CommandError, launch_of_server_args, read_launch_file, read_launches


def refused(text: str) -> str:
    with pytest.raises(CommandError) as caught:
        read_launches(text)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


def refused_file(path: pathlib.Path, held: bytes) -> str:
    path.write_bytes(held)
    with pytest.raises(CommandError) as caught:
        read_launch_file(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


def test_nothing_is_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    for name in ("system", "popen", "execv", "fork", "posix_spawn"):
        monkeypatch.setattr(os, name, fail)
    monkeypatch.setattr(subprocess, "Popen", fail)
    made = tmp_path / "made"
    (launch,) = read_launches(
        f'touch {made}; vllm serve $(touch {made}) -tp `touch {made}` --seed "$(touch {made})" ; rm -rf {tmp_path} '
        f"&& eval 'touch {made}' || <(touch {made})"
    )
    assert launch.model == f"$(touch {made})"
    assert launch.values["tensor_parallel_size"] == f"`touch {made}`"
    assert launch.values["seed"] == f"$(touch {made})"
    assert tmp_path.exists()
    assert not made.exists()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("vllm serve 'm -tp 2", 'the "\'" at line 1, column 12 is never closed'),
        ('ls\nvllm serve "m -tp 2\n', "the '\"' at line 2, column 12 is never closed"),
        ("vllm serve `m", "the '`' at line 1, column 12 is never closed"),
        ("vllm serve $(m", "is never closed"),
        ("vllm serve ${m", "is never closed"),
    ],
)
def test_what_is_never_closed_is_pointed_at(text: str, place: str) -> None:
    assert place in refused(text)


def test_long_and_strange_texts() -> None:
    assert "longer than 16 MiB" in refused("x" * (100 * 2**20))
    assert "NUL" in refused("vllm serve m\0 -tp 2")
    assert "starts no engine" in refused("")
    assert "more than 1000 launches" in refused("vllm serve m\n" * 2000)
    refused("\\")
    refused("((((((" * 1000)


def test_a_million_words() -> None:
    begun = time.monotonic()
    (launch,) = read_launches("vllm serve m -tp 2 " + "w " * 1_000_000)
    assert launch.values == {"model": "m", "tensor_parallel_size": 2}
    assert launch.notes == ("'w' belongs to no flag",)
    assert time.monotonic() - begun < 60  # what grows with the square takes hours


def test_many_strange_flags_are_counted() -> None:
    (launch,) = read_launches("sglang serve m " + " ".join(f"--flag-{n} x{n}" for n in range(50_000)))
    assert len(launch.unknown) <= 101
    assert launch.unknown[-1] == "... and 49900 more"


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxx\n" + "A=$A$A\n" * 200 + "vllm serve $A\n",
        f"A={'x' * 60_000}\nvllm serve " + "$A " * 1_000,
        f'A={"x" * 60_000}\nvllm serve "' + "$A" * 1_000 + '"',
    ],
)
def test_variables_that_grow(text: str) -> None:
    assert "more than 16 MiB" in refused(text)


def test_deep_and_large_values() -> None:
    (launch,) = read_launches(f"vllm serve m --speculative-config '{'[' * 100_000}' --max-num-seqs {'9' * 10_000}")
    assert isinstance(launch.values["speculative_config"], str)
    assert any(note.startswith("--max-num-seqs takes a whole number") for note in launch.notes)
    (launch,) = read_launches(f"vllm serve m --compilation-config.{'a.' * 10_000}b 1")
    assert "compilation_config" in launch.values
    deep = launch_of_server_args(f"ServerArgs(tp_size=8, x={'(' * 50_000}")
    assert deep.values == {"tp_size": 8}


def test_binary_and_odd_files(tmp_path: pathlib.Path) -> None:
    assert "is binary" in refused_file(tmp_path / "a.bin", b"\x7fELF\0\0")
    assert "no UTF-8" in refused_file(tmp_path / "b.sh", b"vllm serve \xff\xfe")
    with (tmp_path / "c.sh").open("wb") as opened:
        opened.truncate(100 * 2**20)
    with pytest.raises(CommandError, match="larger than 16 MiB"):
        read_launch_file(tmp_path / "c.sh")
    with pytest.raises(CommandError, match="is no file"):
        read_launch_file(tmp_path)
    with pytest.raises(CommandError, match="cannot be read"):
        read_launch_file(tmp_path / "missing")
    with pytest.raises(CommandError, match="cannot be read"):
        read_launch_file("a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CommandError, match="is no file"):
        read_launch_file(tmp_path / "pipe")
    assert "starts no engine" in refused_file(tmp_path / "d.json", b"[1, 2, 3]")
    refused_file(tmp_path / "e.json", b"[" * 1_000_000)
    refused_file(tmp_path / "f.json", b"{" * 1_000_000)


def test_yaml_bombs(tmp_path: pathlib.Path) -> None:
    laughs = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{after}: &{after} [{', '.join(['*' + before] * 9)}]\n"
        for before, after in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert "anchor or alias at line 1" in refused_file(tmp_path / "a.yaml", laughs.encode())
    refused_file(tmp_path / "b.yaml", b"[" * 10_000)
    nested = "".join(f"{' ' * n}a:\n" for n in range(60))
    assert "deeper than 40" in refused_file(tmp_path / "b.yaml", nested.encode())
    assert "no YAML" in refused_file(tmp_path / "c.yaml", b"a: [1\nb: ]: {")
    made = tmp_path / "made"
    tagged = f"model-path: !!python/object/apply:os.system ['touch {made}']\n"
    assert "no YAML" in refused_file(tmp_path / "d.yaml", tagged.encode())
    assert not made.exists()
    assert "longer than 200000 parts" in refused_file(tmp_path / "e.yaml", b"- 1\n" * 300_000)
    assert "starts no engine" in refused_file(tmp_path / "f.yaml", b"color: red\n")
