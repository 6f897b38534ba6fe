"""Keys are read from a folder of small files; every fault names its file and shows no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.errors import SpecError
from stage_runtime.ipc.keys import generate, load_client, load_server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in generate().items():
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def test_both_sides_find_each_other_in_one_folder(folder: Path) -> None:
    server, client = load_server(folder), load_client(folder)
    assert client.server_public == server.public
    assert server.allowed == {client.public}
    assert server.secret != client.secret


def test_two_stages_have_different_keys() -> None:
    first, second = generate(), generate()
    assert not set(first.values()) & set(second.values())


def test_every_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as wrong:
        load_server(tmp_path)
    assert [fault.path for fault in wrong.value.faults] == [
        str(tmp_path / name) for name in ("server.key", "server.pub", "client.pub")
    ]
    assert "No such file" in str(wrong.value)


@pytest.mark.parametrize(("text", "got"), [("short", "5 characters"), ('"' * 40, "other characters")])
def test_what_is_no_key_is_refused_without_being_shown(folder: Path, text: str, got: str) -> None:
    (folder / "client.key").write_text(text)
    with pytest.raises(SpecError) as wrong:
        load_client(folder)
    (fault,) = wrong.value.faults
    assert (fault.path, fault.got) == (str(folder / "client.key"), got)


def test_halves_of_two_pairs_are_refused(folder: Path) -> None:
    (folder / "server.pub").write_text(generate()["server.pub"])
    with pytest.raises(SpecError, match=r"server\.key: expected the secret of the public key beside it"):
        load_server(folder)


def test_secrets_are_not_printed(folder: Path) -> None:
    for keys in (load_server(folder), load_client(folder)):
        assert keys.secret.decode() not in repr(keys)
