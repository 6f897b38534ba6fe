"""The token by which a model is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.errors import SpecError
from stage_api.source import HuggingFaceSource, SecretKeyRef
from stage_runtime.pipelines.fetch import read_token

PUBLIC = HuggingFaceSource(repo="org/flux", revision="0" * 40)
GATED = PUBLIC.model_copy(update={"token_secret_ref": SecretKeyRef(name="hub")})


def test_a_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_abc\n")
    assert read_token(GATED, tmp_path) == "hf_abc"


def test_no_token_is_read_where_the_stage_names_none(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_abc")
    assert read_token(PUBLIC, tmp_path) is None


def test_a_token_that_is_missing_is_the_specs_fault(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="expected a file with a token, got FileNotFoundError"):
        read_token(GATED, tmp_path)


def test_an_empty_token_is_the_specs_fault(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(SpecError, match="expected a file with a token, got an empty one"):
        read_token(GATED, tmp_path)
