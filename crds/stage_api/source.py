"""Where a stage's model comes from, as the user says it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from stage_api.base import Contract, Law
from stage_api.errors import Fault, show
from stage_api.kube_values import ObjectName

MAX_PATH_CHARS: Final = 4096  # PATH_MAX of Linux

Path = Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]


class Embedded(StrEnum):
    """Models that come with the project."""

    SHAPES = "shapes"
    DIGITS = "digits"


class PullPolicy(StrEnum):
    """When an image is pulled."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


def _is_plain_absolute(path: str) -> Fault | None:
    if path.startswith("/") and ".." not in path.split("/"):
        return None
    return Fault("path", "an absolute path without '..'", show(path))


class HostPath(Contract):
    """A folder on the machine that runs the stage."""

    path: Path = Field(
        description="Absolute path of a folder in the diffusers format (it has a model_index.json)."
    )

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("path",),
            "self.path.startsWith('/') && !self.path.contains('/../') && !self.path.endsWith('/..')",
            "must be absolute and without '..'",
            _is_plain_absolute,
            "path",
        ),
    )


def _is_plain_relative(path: str | None) -> Fault | None:
    if path is None or (not path.startswith("/") and ".." not in path.split("/")):
        return None
    return Fault("subPath", "a relative path without '..'", show(path))


_SUB_PATH_LAW: Final = Law(
    ("sub_path",),
    "!has(self.subPath) || (!self.subPath.startsWith('/') && !('/' + self.subPath + '/').contains('/../'))",
    "must be relative and without '..'",
    _is_plain_relative,
    "subPath",
)


class ClaimSource(Contract):
    """A folder on a volume that a PersistentVolumeClaim asks for."""

    claim_name: ObjectName = Field(description="Name of the claim, in the stage's namespace.")
    sub_path: Path | None = Field(default=None, description="Folder in the volume. Left out, its root.")

    laws: ClassVar[tuple[Law, ...]] = (_SUB_PATH_LAW,)


ImageReference = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[^\s]+$",
        json_schema_extra={"x-expected": "an image such as registry.example/model:1"},
    ),
]


class ImageSource(Contract):
    """A folder in an OCI image, which the node mounts."""

    reference: ImageReference = Field(description="The image; a digest in it pins the model.")
    pull_policy: Annotated[PullPolicy, Field(strict=False)] = Field(
        default=PullPolicy.IF_NOT_PRESENT, description="When nodes pull it."
    )
    sub_path: Path | None = Field(default=None, description="Folder in the image. Left out, its root.")

    laws: ClassVar[tuple[Law, ...]] = (_SUB_PATH_LAW,)


class SecretKeyRef(Contract):
    """One entry of a Secret."""

    name: ObjectName = Field(description="Name of the Secret, in the stage's namespace.")
    key: Annotated[
        str,
        Field(
            max_length=253,
            pattern=r"^([-_a-zA-Z0-9]|[.][-_a-zA-Z0-9])[-._a-zA-Z0-9]*$",  # no "." and nothing that begins with ".."
            json_schema_extra={"x-expected": "a key that a Secret may have, such as token"},
        ),
    ] = Field(default="token", description="Key of the entry.")


class HuggingFaceSource(Contract):
    """A model repository of the Hugging Face Hub, fetched before the stage starts."""

    repo: Annotated[
        str,
        Field(
            min_length=1,
            max_length=193,
            pattern=r"^([A-Za-z0-9][-A-Za-z0-9_.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*$",
            json_schema_extra={"x-expected": "a repository such as owner/model"},
        ),
    ] = Field(description="The repository.")
    revision: Annotated[
        str,
        Field(
            max_length=40,
            pattern=r"^[0-9a-f]{40}$",
            json_schema_extra={"x-expected": "a commit, 40 hexadecimal digits, since branches and tags move"},
        ),
    ] = Field(description="Commit of the repository, so that every life of every replica has the same files.")
    endpoint: (
        Annotated[
            str,
            Field(
                max_length=1024,
                pattern=r"^https?://[^\s]+$",
                json_schema_extra={"x-expected": "an http or https URL"},
            ),
        ]
        | None
    ) = Field(default=None, description="URL of a mirror. Left out, the Hub itself.")
    token_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description="Token for a repository that isn't public; only the fetching container sees it.",
    )
    allow_patterns: Annotated[tuple[Pattern, ...], Field(strict=False, max_length=32)] = Field(
        default=(), description="Fetch only files that match one of these, such as `unet/*`. Empty, all."
    )
    ignore_patterns: Annotated[tuple[Pattern, ...], Field(strict=False, max_length=32)] = Field(
        default=(), description="Don't fetch files that match one of these, such as `*.bin`."
    )
    cache: ClaimSource | None = Field(
        default=None,
        description="Volume that keeps the files, so that they are fetched once; ReadWriteMany for pods on "
        "several nodes. Left out, each pod fetches them anew.",
    )


_KINDS: Final = ("embedded", "hostPath", "persistentVolumeClaim", "image", "huggingFace")
_ONE_OF: Final = f"exactly one of {', '.join(_KINDS)}"


def _is_one_source(*sources: object) -> Fault | None:
    given = [kind for kind, source in zip(_KINDS, sources, strict=True) if source is not None]
    if len(given) == 1:
        return None
    return Fault("", _ONE_OF, " and ".join(given) or "none")


class ModelSource(Contract):
    """Where the model comes from: exactly one of these."""

    embedded: Annotated[Embedded, Field(strict=False)] | None = Field(
        default=None, description="A model that comes with the worker image, by its name."
    )
    host_path: HostPath | None = Field(
        default=None,
        description="A folder on the machine that runs the stage. On a cluster only if the operator allows it.",
    )
    persistent_volume_claim: ClaimSource | None = Field(
        default=None, description="A folder on a volume, mounted read-only."
    )
    image: ImageSource | None = Field(
        default=None,
        description="A folder in an OCI image. Takes Kubernetes 1.35, or 1.33 with ImageVolume switched on.",
    )
    hugging_face: HuggingFaceSource | None = Field(
        default=None, description="A repository of the Hugging Face Hub."
    )

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("embedded", "host_path", "persistent_volume_claim", "image", "hugging_face"),
            "[" + ", ".join(f"has(self.{kind})" for kind in _KINDS) + "].filter(given, given).size() == 1",
            f"{_ONE_OF} must be set",
            _is_one_source,
        ),
    )

    @property
    def kind(self) -> str:
        """Which one is given, as the manifest spells it."""
        sources = (
            self.embedded,
            self.host_path,
            self.persistent_volume_claim,
            self.image,
            self.hugging_face,
        )
        return next(kind for kind, source in zip(_KINDS, sources, strict=True) if source is not None)
