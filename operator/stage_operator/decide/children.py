"""The objects of a stage, as actions: its pods, what they need, and what of it is wanted no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stage_api import names
from stage_api.failure import MAX_BAD_NODES
from stage_api.replica_status import ReplicaPhase
from stage_api.stage import DiffusionStage
from stage_operator.decide.replica import LIVE, Life, Replica
from stage_operator.decide.rollout import Wish
from stage_operator.decide.views import is_owned, unix_s
from stage_operator.manifests import gang
from stage_operator.manifests.children import children
from stage_operator.manifests.pod import pods
from stage_operator.manifests.secret import keys
from stage_operator.values import Action, Api, Apply, ChildKey, Manifest, Objects, PlanSettings, Remove

_CONFIG_MAP, _POD_GROUP = "ConfigMap", "PodGroup"


def life_pods(
    stage: DiffusionStage, life: Life, api: Api, settings: PlanSettings, others: Iterable[Life] = ()
) -> tuple[Manifest, ...]:
    """Every pod of a life, by ordinal. It keeps away from nodes that failed it, and from those that failed `others`."""
    known = dict.fromkeys(node for other in others for node in other.history.bad_nodes)
    own = life.history.bad_nodes
    avoid = (*(node for node in known if node not in own), *own)[-MAX_BAD_NODES:]
    made = pods(stage, life.index, life.epoch, settings=settings, api=api, avoid=avoid)
    for pod in made:
        pod["metadata"]["labels"][names.LABEL_REVISION] = life.revision
    return made


def keep(
    objects: Objects, stage: DiffusionStage, wish: Wish, replicas: Sequence[Replica], settings: PlanSettings
) -> Iterator[Action]:
    """What the pods need, and the end of what nobody needs any more."""
    live = [replica for replica in replicas if replica.phase in LIVE]
    indexes = [replica.index for replica in live]
    wanted = list(children(stage, objects.api, indexes, operator_at=settings.namespace))
    if wish.pods > 1:
        yield keys(stage)
    for replica in live:
        # Others have theirs, or were made when the cluster served none.
        if replica.phase is ReplicaPhase.PENDING and replica.life.revision == wish.revision:
            group = gang.pod_group(stage, replica.index, replica.life.epoch, objects.api)
            if group is not None:
                wanted.append(group)
    yield from (Apply(manifest) for manifest in wanted)
    yield from _sweep(objects, stage, wanted, wish, replicas)


def _sweep(
    objects: Objects,
    stage: DiffusionStage,
    wanted: Sequence[Manifest],
    wish: Wish,
    replicas: Sequence[Replica],
) -> Iterator[Remove]:
    keys_wanted = {ChildKey.of(manifest) for manifest in wanted}
    groups = {
        names.life_name(stage.metadata.name, one.index, pod.epoch)
        for one in replicas
        for pod in (*one.pods, *one.older)
    }
    for key, child in sorted(objects.children.items()):
        metadata = child["metadata"]
        if key in keys_wanted or not is_owned(child, stage.metadata.uid):
            continue
        if metadata.get("deletionTimestamp") is not None:
            continue
        if key.kind == _POD_GROUP and key.name in groups:
            continue
        if key.kind == _CONFIG_MAP and not _all_read_the_new_config(objects, wanted, wish, replicas):
            continue
        yield Remove(child["apiVersion"], key.kind, key.name, metadata.get("uid"))


def _all_read_the_new_config(
    objects: Objects, wanted: Sequence[Manifest], wish: Wish, replicas: Sequence[Replica]
) -> bool:
    """Whether each pod was made from the config as it is now. One that is older may still have to read another."""
    new = next(manifest for manifest in wanted if manifest["kind"] == _CONFIG_MAP)
    there = objects.children.get(ChildKey.of(new))
    since_s = None if there is None else unix_s(there["metadata"].get("creationTimestamp"))
    made = [pod for replica in replicas for pod in (*replica.pods, *replica.older)]
    if since_s is None:
        return False
    return all(
        pod.revision in wish.same and pod.created_s is not None and pod.created_s >= since_s for pod in made
    )
