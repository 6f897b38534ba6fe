"""What the cluster holds, as far as stages are concerned: kept by events, and set right by lists.

An object is known by its version: what is older than what is here is news no more, whoever brings it. A list is
exact about its own moment: what it lacks and what is not younger than it is gone, though no event said so. And who
was deleted never comes back, since uids don't. So events, lists and the answers to our own writes may come in any
order, and a create is in here before its event is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from stage_api import names
from stage_operator.decide import moments
from stage_operator.observed.gone_pods import Departed
from stage_operator.observed.interned import compact
from stage_operator.observed.own_clock import OwnClock
from stage_operator.observed.questions import still_true
from stage_operator.observed.sightings import Sightings, uid_of
from stage_operator.observed.slim import slim_child, slim_node, slim_pod, slim_stage
from stage_operator.values import Api, ChildKey, Manifest, Objects, Said, StageKey

STAGE: Final = names.KIND
POD: Final = "Pod"
NODE: Final = "Node"

_TOMBSTONES: Final = (
    20_000  # uids; a late event for one that was deleted longer ago is set right by the next list
)

Name = tuple[str, str]
"""Namespace (empty for a node) and name."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a list changed."""

    changed: tuple[Manifest, ...]
    """As they are now; also those that are gone, as they last were."""
    ghosts: int
    """How many were gone without anybody having said so."""


class Shelf:
    """The objects of one kind."""

    def __init__(
        self,
        slim: Callable[[Manifest], Manifest],
        indexes: Mapping[str, Callable[[Manifest], Hashable | None]],
        on_gone: Callable[[Manifest], None] = lambda gone: None,
        sightings: Sightings | None = None,
    ) -> None:
        """`slim` leaves out what nobody reads; an index groups objects by what its function gives."""
        self._slim = slim
        self._on_gone = on_gone
        self._sightings = sightings
        self._objects: dict[Name, Manifest] = {}
        self._owners: Final = dict(indexes)
        self._members: dict[str, dict[Hashable, dict[Name, None]]] = {name: {} for name in indexes}
        self._dead: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._objects.values())

    def get(self, name: Name) -> Manifest | None:
        """The object of that name."""
        return self._objects.get(name)

    def of(self, index: str, owner: Hashable) -> Iterator[Manifest]:
        """The objects of one group."""
        return (self._objects[name] for name in self._members[index].get(owner, ()))

    def put(self, raw: Manifest) -> Manifest | None:
        """Take an object in. The answer is it, slimmed, if something about it is new, else None."""
        metadata = raw["metadata"]
        name = _name(raw)
        old = self._objects.get(name)
        if metadata.get("uid") in self._dead:
            return None
        if old is not None and version(raw) <= version(old):
            return None
        new: Manifest = compact(self._slim(raw))
        self._unlink(name, old)
        self._objects[name] = new
        self._link(name, new)
        if self._sightings is not None:
            self._sightings.note(new)
        return None if old is not None and _same(old, new) else new

    def drop(self, raw: Manifest) -> Manifest | None:
        """Let go of exactly this object. The answer is what was here, if it was."""
        self._bury(raw)
        name = _name(raw)
        old = self._objects.get(name)
        if old is None or _uid(old) != _uid(raw):
            return None
        self._unlink(name, old)
        del self._objects[name]
        if self._sightings is not None:
            self._sightings.forget(old)
        self._on_gone(old)
        return old

    def replace(self, namespace: str | None, raws: Iterable[Manifest], at: int) -> Replaced:
        """Set this right by a list of all that there was, in a namespace or anywhere, at version `at`."""
        changed: list[Manifest] = []
        listed: set[Name] = set()
        for raw in raws:
            listed.add(_name(raw))
            if (new := self.put(raw)) is not None:
                changed.append(new)
        gone = [
            old
            for name, old in self._objects.items()
            if name not in listed and namespace in (None, name[0]) and version(old) <= at
        ]
        for old in gone:
            self.drop(old)
        return Replaced((*changed, *gone), len(gone))

    def _bury(self, raw: Manifest) -> None:
        if (uid := _uid(raw)) is not None:
            self._dead[uid] = None
            if len(self._dead) > _TOMBSTONES:
                self._dead.popitem(last=False)

    def _link(self, name: Name, obj: Manifest) -> None:
        for index, owner_of in self._owners.items():
            if (owner := owner_of(obj)) is not None:
                self._members[index].setdefault(owner, {})[name] = None

    def _unlink(self, name: Name, old: Manifest | None) -> None:
        if old is None:
            return
        for index, owner_of in self._owners.items():
            if (owner := owner_of(old)) is not None:
                members = self._members[index][owner]
                del members[name]
                if not members:
                    del self._members[index][owner]


class Cache:
    """Every shelf, and which stages a change is about. Not for threads."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        clock = clock or OwnClock()
        self._departed = Departed()
        self._said: dict[str, Said] = {}  # by uid
        self._seen = {
            STAGE: Sightings(moments.of_stage, clock),
            POD: Sightings(moments.of_pod, clock),
            NODE: Sightings(moments.of_node, clock),
        }
        of_pods = {"stage": stage_of, "node": node_of}
        self._shelves: dict[str, Shelf] = {
            STAGE: Shelf(slim_stage, {}, sightings=self._seen[STAGE]),
            POD: Shelf(slim_pod, of_pods, self._forget_pod, self._seen[POD]),
            NODE: Shelf(slim_node, {}, sightings=self._seen[NODE]),
        }

    def caught_up(self) -> None:
        """All that there is has been listed: what comes true from here on is seen to."""
        for sightings in self._seen.values():
            sightings.caught_up()

    def put(self, kind: str, raw: Manifest) -> frozenset[StageKey]:
        """Take an object in; the stages for which that is news."""
        new = self._shelf(kind).put(raw)
        return frozenset() if new is None else self._about(kind, (new,))

    def drop(self, kind: str, raw: Manifest) -> frozenset[StageKey]:
        """Let go of this very object; the stages for which that is news."""
        old = self._shelf(kind).drop(raw)
        return frozenset() if old is None else self._about(kind, (old,))

    def replace(
        self, kind: str, namespace: str | None, raws: Iterable[Manifest], at: int
    ) -> tuple[frozenset[StageKey], int]:
        """Set a kind right by a list; the stages for which that is news, and how many ghosts were dropped."""
        replaced = self._shelf(kind).replace(namespace, raws, at)
        return self._about(kind, replaced.changed), replaced.ghosts

    def stage(self, key: StageKey) -> Manifest | None:
        """The stage's own object."""
        return self._shelves[STAGE].get(key)

    def stages(self) -> Iterator[Manifest]:
        """All of them."""
        return iter(self._shelves[STAGE])

    def keys(self) -> frozenset[StageKey]:
        """Which stages there are."""
        return frozenset(StageKey.of(stage) for stage in self.stages())

    def pods(self) -> Iterator[Manifest]:
        """Those of all stages."""
        return iter(self._shelves[POD])

    def tell(self, pod: Manifest, said: Said) -> frozenset[StageKey]:
        """Keep what was asked about a pod; the stages for which that is news."""
        uid, old = str(_uid(pod)), self._said.get(str(_uid(pod)))
        if self._shelves[POD].get(_name(pod)) is None:
            return frozenset()
        if said.facts is None and old is not None:
            said = replace(said, facts=old.facts)  # they don't change in its life
        self._said[uid] = said
        return frozenset() if said == old else self._about(POD, (pod,))

    def node(self, name: str) -> Manifest | None:
        """A node that is known."""
        return self._shelves[NODE].get(("", name))

    def objects(self, key: StageKey, api: Api) -> Objects | None:
        """What is known of a stage: its pods in the order of their names, the nodes they are on, its children."""
        stage = self.stage(key)
        if stage is None:
            return None
        pods = sorted(self._shelves[POD].of("stage", key), key=lambda pod: str(pod["metadata"]["name"]))
        on = {name for pod in pods if (name := node_of(pod)) is not None}
        nodes = {name: node for name in sorted(on) if (node := self.node(name)) is not None}
        return Objects(
            stage=stage,
            api=api,
            pods=tuple(pods),
            nodes=nodes,
            said={
                uid: still_true(said, pod)
                for pod in pods
                if (said := self._said.get(uid := str(_uid(pod)))) is not None
            },
            seen={
                uid_of(obj): self._seen[kind].of(obj)
                for kind, objs in ((STAGE, (stage,)), (POD, pods), (NODE, nodes.values()))
                for obj in objs
            },
            gone=self._departed.of(stage),
            children={
                ChildKey.of(child): child
                for kind, shelf in self._shelves.items()
                if kind not in (STAGE, POD, NODE)
                for child in shelf.of("stage", key)
            },
        )

    def child(self, manifest: Manifest) -> Manifest | None:
        """What is there in the name of a manifest."""
        return self._shelf(kind_of(manifest["apiVersion"], manifest["kind"])).get(_name(manifest))

    def sizes(self) -> dict[str, int]:
        """How many objects there are of each kind."""
        return {kind: len(shelf) for kind, shelf in self._shelves.items()}

    def _shelf(self, kind: str) -> Shelf:
        if (shelf := self._shelves.get(kind)) is None:
            shelf = self._shelves[kind] = Shelf(slim_child, {"stage": stage_of})
        return shelf

    def _forget_pod(self, pod: Manifest) -> None:
        self._said.pop(str(_uid(pod)), None)
        self._departed.note(pod)

    def _about(self, kind: str, objs: Iterable[Manifest]) -> frozenset[StageKey]:
        if kind == STAGE:
            return frozenset(StageKey.of(obj) for obj in objs)
        if kind == NODE:
            pods = (pod for obj in objs for pod in self._shelves[POD].of("node", obj["metadata"]["name"]))
            return frozenset(key for pod in pods if (key := stage_of(pod)) is not None)
        return frozenset(key for obj in objs if (key := stage_of(obj)) is not None)


def kind_of(api_version: str, kind: str) -> str:
    """Under what a kind is kept here: the same for all versions of one group."""
    if kind in (STAGE, POD, NODE):
        return kind
    group, _, _ = api_version.rpartition("/")
    return f"{kind}.{group}" if group else kind


def version(obj: Mapping[str, Any]) -> int:
    """The moment an object, or a list, is from. Versions of one API server can be compared."""
    return int(obj["metadata"].get("resourceVersion") or 0)


def stage_of(obj: Mapping[str, Any]) -> StageKey | None:
    """Which stage an object belongs to, by its label."""
    metadata = obj["metadata"]
    name = (metadata.get("labels") or {}).get(names.LABEL_STAGE)
    return None if name is None else StageKey(metadata.get("namespace", ""), name)


def node_of(pod: Mapping[str, Any]) -> str | None:
    """Where a pod is bound to."""
    return (pod.get("spec") or {}).get("nodeName")


def _name(obj: Manifest) -> Name:
    metadata = obj["metadata"]
    return (metadata.get("namespace") or "", metadata["name"])


def _uid(obj: Manifest) -> str | None:
    uid: str | None = obj["metadata"].get("uid")
    return uid


def _same(old: Manifest, new: Manifest) -> bool:
    """Whether they differ in nothing but the version."""
    if old.keys() != new.keys():
        return False
    if any(old[part] != new[part] for part in old if part != "metadata"):
        return False
    return _timeless(old["metadata"]) == _timeless(new["metadata"])


def _timeless(metadata: Manifest) -> Manifest:
    return {name: value for name, value in metadata.items() if name != "resourceVersion"}
