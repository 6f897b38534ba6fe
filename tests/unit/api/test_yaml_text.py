"""YAML is read as kubectl reads it, and never breaks the reader."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_api.errors import SpecError
from stage_api.yaml_text import MAX_CHARS, documents


def value(text: str | bytes) -> Any:
    (doc,) = documents(text)
    assert doc.faults == ()
    return doc.value


def faults(text: str) -> list[str]:
    (doc,) = documents(text)
    return [str(fault) for fault in doc.faults]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8", 8),
        ("'8'", "8"),
        ("!!str 8", "8"),
        ("-3", -3),
        ("1_000", 1000),
        ("0x10", 16),
        ("0o17", 15),
        ("017", 15),
        ("0b11", 3),
        ("0", 0),
        ("3.5", 3.5),
        ("1e3", 1000.0),
        ("1_0.5", 10.5),
        ("08", 8.0),
        ("1e400", "1e400"),
        (".5", 0.5),
        ("yes", True),
        ("Off", False),
        ("'yes'", "yes"),
        ("y", True),
        ("N", False),
        ("null", None),
        ("~", None),
        ("2026-01-02", "2026-01-02"),
        ("1:30", "1:30"),
        ("1.2.3", "1.2.3"),
        ("|\n  two\n  lines", "two\nlines"),
        ('"\\u6a21"', "模"),
    ],
)
def test_a_scalar_means_what_it_means_to_kubectl(text: str, meant: object) -> None:
    read = value(f"a: {text}")["a"]
    assert (read, type(read)) == (meant, type(meant))


def test_json_is_yaml() -> None:
    assert value('{"a": [1, 2.5, null, true, "x"]}') == {"a": [1, 2.5, None, True, "x"]}


def test_empty_documents_are_left_out() -> None:
    assert [doc.value for doc in documents("---\n---\na: 1\n---\n# nothing\n---\nb: 2\n")] == [
        {"a": 1},
        {"b": 2},
    ]


def test_bytes_with_a_byte_order_mark_are_read() -> None:
    assert value("a: 模".encode("utf-8-sig")) == {"a": "模"}


def test_anchors_and_merge_keys_are_followed_and_own_keys_win() -> None:
    assert value("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}")["use"] == {"x": 1, "y": 3}


def test_every_repeated_key_is_a_fault_at_its_path() -> None:
    assert faults("a: 1\na: 2\nb:\n  - c: 1\n    c: 2\n") == [
        "a: expected each key once, got it again at line 2",
        "b[0].c: expected each key once, got it again at line 5",
    ]


@pytest.mark.parametrize("text", [".nan", ".inf", "-.Inf"])
def test_a_number_that_is_not_finite_is_a_fault(text: str) -> None:
    assert faults(f"a: {text}") == [f"a: expected a finite number, got {text}"]


@pytest.mark.parametrize("text", ["!!python/object:os.system x", "!!binary aGk=", "!mine x"])
def test_a_tag_of_a_type_that_json_lacks_is_a_fault(text: str) -> None:
    assert "expected a plain value" in faults(f"a: {text}")[0]


def test_a_key_that_is_no_text_is_a_fault() -> None:
    assert faults("? [a]\n: 1") == ["expected keys that are text, got a list or mapping as a key"]


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "expected YAML"),
        ("a: b: c", "line 1, column 5"),
        ("a: *nowhere", "expected YAML"),
        (b"\xff\xfe", "expected UTF-8 text, got byte 0"),
        (b"a: \x00", "expected YAML"),
        ("\ud800", "expected YAML"),
        ("{a: " * 300, "levels of nesting"),
        ("[" * 100_000, "expected"),
        ("- " * 100_000, "expected"),
        ("&a [*a]", "anchors followed"),
        (BOMB, "anchors followed"),
        ("x" * (MAX_CHARS + 1), "at most 1048576 characters"),
    ],
    ids=lambda text: repr(text)[:24],
)
def test_rubbish_is_refused_with_a_reason(text: str | bytes, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        documents(text)


@given(
    st.text(max_size=200)
    | st.binary(max_size=200)
    | st.text(alphabet="{}[]:,-&*!|>'\"\n #?%@a1~<", max_size=60)
)
def test_any_text_gives_documents_or_a_spec_error(text: str | bytes) -> None:
    with contextlib.suppress(SpecError):
        assert isinstance(documents(text), tuple)
