"""How the ranks of a group come up: what each has said so far, and what it is told next. Pure.

hello → setup → (rank 0 serves the rendezvous → meet) → ready. A rank that doesn't get there is named, with what it was
doing last.
"""

from __future__ import annotations

from stage_api.startup_progress import StartProgress
from stage_runtime.core.capability import Capability
from stage_runtime.core.errors import EngineDeadError, InternalError
from stage_runtime.core.starting import Tell, untold
from stage_runtime.ipc import messages

UNHEARD = "has not said hello"


class Handshake:
    """The start of one group of `world_size` ranks."""

    def __init__(self, setup: messages.Setup, *, digest: str, world_size: int, tell: Tell = untold) -> None:
        """`digest` is the topology's; every rank must have derived the same. `tell` gets what rank 0 is doing."""
        self._tell = tell
        self._setup = setup
        self._digest = digest
        self._doing = dict.fromkeys(range(world_size), UNHEARD)
        self._heard: set[int] = set()
        self._capabilities: dict[int, Capability] = {}

    @property
    def complete(self) -> bool:
        """True once every rank is ready."""
        return len(self._capabilities) == len(self._doing)

    @property
    def capability(self) -> Capability:
        """Of rank 0's model; the other ranks have loaded the same."""
        return self._capabilities[0]

    @property
    def missing(self) -> str:
        """Which ranks aren't ready, and what each does."""
        return "; ".join(
            f"rank {rank} {doing}" for rank, doing in self._doing.items() if rank not in self._capabilities
        )

    def take(self, reply: messages.Reply) -> list[messages.Command]:
        """What all ranks are to be told after this reply.

        Raises: EngineDeadError for a rank of another version, epoch or topology; InternalError for one that can't be.
        """
        if reply.rank not in self._doing:
            raise InternalError(f"rank {reply.rank} is not one of {len(self._doing)}")
        match reply:
            case messages.Hello():
                return self._greet(reply)
            case messages.Serving(store=store):
                return [messages.Meet(store)]
            case messages.Starting(rank=rank, doing=doing, progress=progress):
                self._doing[rank] = f"is {doing}"
                if rank == 0 and progress:
                    self._tell(StartProgress.decode(progress))
            case messages.Ready(rank=rank, capability=capability):
                self._capabilities[rank] = capability
            case _:
                raise InternalError(f"rank {reply.rank} sent a {type(reply).__name__} before it was ready")
        return []

    def _greet(self, hello: messages.Hello) -> list[messages.Command]:
        found = (hello.protocol, hello.epoch, hello.digest)
        expected = (messages.PROTOCOL, self._setup.epoch, self._digest)
        if found != expected:
            raise EngineDeadError(
                f"rank {hello.rank} is of another life: protocol, epoch and topology are {found}, "
                f"expected {expected}"
            )
        self._doing[hello.rank] = "has said hello"
        self._heard.add(hello.rank)
        return [self._setup] if len(self._heard) == len(self._doing) else []
