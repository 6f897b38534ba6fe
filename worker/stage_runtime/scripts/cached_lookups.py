"""A loaded pipeline whose unchanging answers are looked up once: its device, its modules' dtypes, its signature.

Pipelines ask for them several times a request, and each answer is a walk over all modules (3 ms a request on a model
of 150 modules). While a pipeline is served its weights stay where they are, so the answers can't change.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import torch

MODULE_FACTS: Final = ("device", "dtype")


def with_cached_lookups(pipeline: Any) -> Any:
    """A shallow copy of `pipeline` of a subclass that knows these answers; pipelines nested in it too."""
    kind = type(pipeline)
    own = copy.copy(pipeline)
    own.__dict__ = dict(vars(pipeline))
    known: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    known["module_facts"] = {
        name: {fact: value for fact in MODULE_FACTS if (value := getattr(module, fact, None)) is not None}
        for name, module in vars(pipeline).items()
        if isinstance(module, torch.nn.Module)
    }
    for name in ("device", "_execution_device"):
        if isinstance(getattr(kind, name, None), property):
            known[name] = property(_constant(getattr(pipeline, name)))
    if hasattr(kind, "_get_signature_keys"):
        known["_get_signature_keys"] = staticmethod(_constant(kind._get_signature_keys(pipeline)))
    own.__class__ = type(kind.__name__, (kind,), known)
    for name, value in vars(pipeline).items():
        if name != "_components_manager" and hasattr(type(value), "maybe_free_model_hooks"):
            own.__dict__[name] = with_cached_lookups(value)
    return own


def _constant(value: Any) -> Any:
    return lambda _: value
