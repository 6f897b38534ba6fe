"""Every name that two programs must spell alike, and the names derived from a stage's.

Decides spelling only. Nothing in here reads the environment or a file.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

# The API.
GROUP: Final = "omnistage.io"  # API group of every kind of ours
VERSION: Final = "v1alpha1"  # the one served and stored version
API_VERSION: Final = f"{GROUP}/{VERSION}"  # what manifests say in apiVersion
KIND: Final = "DiffusionStage"  # one diffusion model served as replicas
PLURAL: Final = "diffusionstages"  # the resource in URLs and RBAC
SINGULAR: Final = "diffusionstage"  # what kubectl prints for one
SHORT_NAME: Final = "dstage"  # kubectl get dstage
CATEGORY: Final = "omnistage"  # kubectl get omnistage
CRD_NAME: Final = f"{PLURAL}.{GROUP}"  # name of the CustomResourceDefinition

CONTRACT_VERSION: Final = 1  # of the config file; a pod refuses any other

# Labels, on every child object unless said otherwise.
LABEL_STAGE: Final = f"{GROUP}/stage"  # name of the DiffusionStage
LABEL_REPLICA: Final = f"{GROUP}/replica"  # index of the replica, on pods
LABEL_EPOCH: Final = f"{GROUP}/epoch"  # count of the replica's lives, on pods
LABEL_ORDINAL: Final = f"{GROUP}/ordinal"  # index of the pod in its replica, on pods
LABEL_MODEL: Final = f"{GROUP}/model"  # served model name as far as a label holds it, on pods
LABEL_REVISION: Final = f"{GROUP}/revision"  # of the user's spec that the pod was made from, on pods
LABEL_RANK0: Final = f"{GROUP}/rank0"  # "true" on the pod that holds rank 0 and serves HTTP

# Annotations, for values that a label can't hold.
ANNOTATION_MODEL: Final = f"{GROUP}/model-name"  # the served model name as the user wrote it
ANNOTATION_RESTART: Final = f"{GROUP}/restart"  # on the stage, by its user: another value asks for a restart
ANNOTATION_TOPOLOGY: Final = f"{GROUP}/topology"  # digest of the rank topology, on pods

# Environment of a pod. What is the same for every pod of a stage is in the config file instead.
ENV_CONFIG: Final = "OMNISTAGE_CONFIG"  # path of the config file
ENV_STAGE: Final = "OMNISTAGE_STAGE"  # name of the stage, for logs before the config is read
ENV_REPLICA: Final = "OMNISTAGE_REPLICA"  # index of this replica, from 0
ENV_EPOCH: Final = "OMNISTAGE_EPOCH"  # count of this replica's lives, from 0
ENV_LAST_START: Final = "OMNISTAGE_LAST_START_SECONDS"  # what the start of the life before took, if known
ENV_MODELS: Final = "OMNISTAGE_MODELS"  # folder that holds the embedded models
ENV_MASTER_ADDR: Final = "MASTER_ADDR"  # torchrun's: host of rank 0
ENV_MASTER_PORT: Final = "MASTER_PORT"  # torchrun's: port of the rendezvous at rank 0
ENV_WORLD_SIZE: Final = "WORLD_SIZE"  # torchrun's: ranks of the replica
ENV_RANK: Final = "RANK"  # torchrun's: this process's rank in the replica
ENV_LOCAL_RANK: Final = "LOCAL_RANK"  # torchrun's: this process's rank in its pod
ENV_LOCAL_WORLD_SIZE: Final = "LOCAL_WORLD_SIZE"  # torchrun's: ranks of this pod
ENV_GROUP_RANK: Final = "GROUP_RANK"  # torchrun's: index of this pod in the replica

ENV_RANKS_PORT: Final = "OMNISTAGE_RANKS_PORT"  # port for ranks of other pods, where RANKS_PORT can't be had
ENV_KEYS: Final = "OMNISTAGE_KEYS"  # folder of the stage's keys, where it isn't KEYS_DIR

ENV_ACCELERATOR: Final = (
    "OMNISTAGE_ACCELERATOR"  # resource of which each rank of the pod was given one, if any
)
ENV_CONTROL_SOCKET: Final = (
    "OMNISTAGE_CONTROL_SOCKET"  # path of the listener for control calls, in a local run
)

ENV_MODEL_DIR: Final = "OMNISTAGE_MODEL_DIR"  # folder of the model, where its source is mounted or fetched
ENV_LOG_LEVEL: Final = "OMNISTAGE_LOG_LEVEL"  # least level of what a pod logs; its user's to set

_TORCHRUN: Final = frozenset(
    {
        ENV_MASTER_ADDR, ENV_MASTER_PORT, ENV_WORLD_SIZE, ENV_RANK,
        ENV_LOCAL_RANK, ENV_LOCAL_WORLD_SIZE, ENV_GROUP_RANK,
    }
)  # fmt: skip

# Parts of a pod.
CONTAINER: Final = "stage"  # the container of the engine or of an agent
FETCH_CONTAINER: Final = "fetch"  # init container that fetches the model
VOLUME_PREFIX: Final = "omnistage-"  # of the volumes that the operator adds
PORT_NAME: Final = "http"  # of HTTP_PORT, in pods and Services

# Ports.
HTTP_PORT: Final = 8000  # requests, probes and metrics
RANKS_PORT: Final = 29501  # of the first pod, for the ranks of the others
CONTROL_PORT: Final = 29502  # control calls, on the pod's own loopback only
MASTER_PORT: Final = 29500  # rendezvous of the ranks, torch's own default

# URL paths of a pod.
PATH_LIVE: Final = "/livez"  # 200 while the process can still serve or recover by itself
PATH_READY: Final = "/readyz"  # 200 while requests are admitted
PATH_STARTUP: Final = "/startupz"  # 200 once the model is loaded and warm
PATH_METRICS: Final = "/metrics"  # Prometheus text

# Mount paths and files in a pod.
CONFIG_DIR: Final = "/etc/omnistage"  # where the config is mounted
CONFIG_FILE: Final = "stage.json"  # key in the ConfigMap and file name under CONFIG_DIR
MODEL_DIR: Final = "/models/stage"  # where a model from outside the image is mounted
EMBEDDED_DIR: Final = "/opt/omnistage/models"  # the embedded models in the worker image
KEYS_DIR: Final = "/etc/omnistage-keys"  # where the stage's secret is mounted, if its replicas span pods
KEY_SERVER_SECRET: Final = "server.key"  # key in the Secret and file name under KEYS_DIR, like those below
KEY_SERVER_PUBLIC: Final = "server.pub"  # by which ranks know the engine
KEY_CLIENT_SECRET: Final = "client.key"  # of the ranks in other pods
KEY_CLIENT_PUBLIC: Final = "client.pub"  # by which the engine knows them
TOKEN_DIR: Final = (
    "/etc/omnistage-token"  # where the fetching container finds the token of the model's source
)
CONTROL_TOKEN_DIR: Final = "/etc/omnistage-control"  # where the token of control calls is mounted
TOKEN_FILE: Final = "token"  # file name under either
TMP_DIR: Final = "/tmp"  # the only folder on disk that a pod's processes write to
SHM_DIR: Final = "/dev/shm"  # where ranks hand over pictures
MOUNTS: Final = (
    CONFIG_DIR,
    KEYS_DIR,
    TOKEN_DIR,
    CONTROL_TOKEN_DIR,
    MODEL_DIR,
    EMBEDDED_DIR,
    TMP_DIR,
    SHM_DIR,
)
"""Paths of a pod that are the operator's or the image's; nothing of a user's may hide them."""
TERMINATION_LOG: Final = "/dev/termination-log"  # where the kubelet reads a pod's last words

MAX_NAME: Final = 40  # of a stage; what is derived from it then fits into 63 characters
RANKS_SUFFIX: Final = "-ranks"  # of a stage's second Service; no stage may be named so
NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"  # DNS-1035, since Services are named after it
MAX_LABEL: Final = 63  # of a label value and of one part of a DNS name
MAX_REPLICA_STATUSES: Final = 2000  # at most twice as many as may be wanted, which a surge makes
MAX_EPOCH: Final = 1_000_000_000  # past it a status was written by somebody else, and is not believed
MAX_ORDINAL: Final = 1023  # of a pod in its replica: as many pods as there may be ranks
_POD_PLACE: Final = re.compile(r"([0-9]+)-e([0-9]+)-([0-9]+)")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_HASH_CHARS: Final = 8


def pod_name(stage: str, replica: int, epoch: int, ordinal: int) -> str:
    """Name and host name of one pod. A new epoch gives a new name, so lives never mix."""
    return f"{stage}-{replica}-e{epoch}-{ordinal}"


class PodPlace(NamedTuple):
    """Which pod of which life of which replica."""

    replica: int
    epoch: int
    ordinal: int


def pod_place(stage: str, name: str) -> PodPlace | None:
    """What a pod's name says, which nobody can change, unlike its labels; None if it is no name of a stage's pod."""
    found = _POD_PLACE.fullmatch(name.removeprefix(f"{stage}-"))
    if found is None or len(name) > MAX_LABEL:
        return None
    place = PodPlace(*(int(digits) for digits in found.groups()))
    sound = (
        place.replica < MAX_REPLICA_STATUSES and place.epoch <= 2 * MAX_EPOCH and place.ordinal <= MAX_ORDINAL
    )
    return place if sound and pod_name(stage, *place) == name else None


def ranks_service(stage: str) -> str:
    """Name of the headless Service through which the pods of a stage find each other."""
    return stage + RANKS_SUFFIX


def config_map(stage: str, digest: str) -> str:
    """Name of the ConfigMap with the stage's config; another config has another name."""
    return f"{stage}-config-{digest}"


def keys_secret(stage: str) -> str:
    """Name of the Secret with the keys of the stage's ranks."""
    return f"{stage}-keys"


def service_account(stage: str) -> str:
    """Name of the ServiceAccount of the stage's pods."""
    return f"{stage}-stage"


def replica_name(stage: str, replica: int) -> str:
    """Name of what there is once a replica, such as its PodDisruptionBudget."""
    return f"{stage}-{replica}"


def life_name(stage: str, replica: int, epoch: int) -> str:
    """Name of what there is once a life of a replica, such as its PodGroup."""
    return f"{stage}-{replica}-e{epoch}"


def is_reserved_env(name: str) -> bool:
    """Whether a variable of a pod's environment is the operator's own."""
    return (name.startswith("OMNISTAGE_") and name != ENV_LOG_LEVEL) or name in _TORCHRUN


def master_addr(stage: str, namespace: str, replica: int, epoch: int) -> str:
    """Where the ranks of one epoch meet: the first pod, under the headless Service."""
    return f"{pod_name(stage, replica, epoch, 0)}.{ranks_service(stage)}.{namespace}.svc"


def label_value(text: str) -> str:
    """A label value for any text: itself if it may be one, else a slug with a hash.

    Two texts that share a slug still get two values.
    """
    if len(text) <= MAX_LABEL and _LABEL_VALUE.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", text)[: MAX_LABEL - _HASH_CHARS - 1].strip("-")
    return f"{slug}-{digest}" if slug else f"x-{digest}"
