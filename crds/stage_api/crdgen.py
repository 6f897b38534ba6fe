"""Writes the CustomResourceDefinition and its reference page from the models.

    python -m stage_api.crdgen            write both
    python -m stage_api.crdgen --check    fail if a file differs from what the models say

Knows the shape of a CRD; everything about fields comes from `stage_api.schema`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from stage_api import names, reference, schema
from stage_api.stage import DiffusionStage

ROOT: Final = Path(__file__).resolve().parents[2]
CRD_FILE: Final = f"crds/{names.GROUP}_{names.PLURAL}.yaml"
CHART_FILE: Final = f"helm/omnistage/files/{names.GROUP}_{names.PLURAL}.yaml"
"""The same for the chart, which can hold no file from outside its folder."""
REFERENCE_FILE: Final = f"docs/reference/{names.SINGULAR}.md"
MAX_CRD_BYTES: Final = 120_000
"""A client-side apply keeps a copy in an annotation, which the API server limits to 256 KiB with all others."""

HEADER: Final = "# Generated from crds/stage_api by `python -m stage_api.crdgen`. Don't edit.\n"

COLUMNS: Final = (
    # Name, type, path, what it is; those with a number besides are shown by `kubectl get -o wide` only.
    ("Ready", "string", ".status.ready", "Replicas that serve, of those wanted."),
    ("Phase", "string", ".status.phase", "Summary of the conditions."),
    ("Model", "string", ".status.model", "Name that requests use."),
    ("World", "integer", ".status.topology.worldSize", "Ranks of one replica."),
    ("Restarts", "integer", ".status.restarts", "Restarts of replicas so far."),
    (
        "Batches",
        "boolean",
        ".status.facts.capability.batches",
        "Whether requests share the denoiser's calls.",
        1,
    ),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the stage was made."),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the generated files; 0 if all is well, 1 if a file has drifted."""
    parser = argparse.ArgumentParser(prog="crdgen", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(argv).check
    drifted = [name for name, text in generated().items() if not _emit(ROOT / name, text, check=check)]
    for name in drifted:
        print(f"{name} differs from the models: run python -m stage_api.crdgen", file=sys.stderr)
    return 1 if drifted else 0


def generated() -> dict[str, str]:
    """Every generated file by its path from the repository's root."""
    text = render(crd())
    return {CRD_FILE: text, CHART_FILE: text, REFERENCE_FILE: reference.page()}


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition as the API server wants it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": names.CRD_NAME},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def render(value: Mapping[str, Any]) -> str:
    """A value as YAML in one fixed form."""
    body = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True, default_flow_style=False
    )
    return HEADER + str(body)


def _version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text}
            | ({"priority": priority[0]} if priority else {})
            for name, kind, path, text, *priority in COLUMNS
        ],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": _root_schema()},
    }


def _root_schema() -> schema.Schema:
    """The schema of the whole object. Kubernetes itself judges apiVersion, kind and metadata."""
    root = schema.published(schema.structural(DiffusionStage))
    properties = {
        **root["properties"],
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    return {**root, "properties": properties, "required": ["spec"]}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """No anchors: two equal parts are written twice, as people would."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _emit(path: Path, text: str, *, check: bool) -> bool:
    """Write a file, or compare it; False if it is not what it should be."""
    if check:
        return path.is_file() and path.read_text(encoding="utf-8") == text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
