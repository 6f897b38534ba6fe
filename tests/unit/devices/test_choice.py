"""Which device a rank gets; never the CPU where a pod has an accelerator that torch can't use."""

from __future__ import annotations

import pytest

from stage_api.devices import ACCELERATORS, Device
from stage_api.errors import SpecError
from stage_api.outcome import ExitCode
from stage_runtime.core.errors import DeviceLost, ModelError
from stage_runtime.devices.choice import Choice, Usable, choose
from stage_runtime.devices.container_accelerators import Given, Sign
from stage_runtime.exit import exit_code_of

KINDS = list(ACCELERATORS)
NOTHING = Given()


def has(kind: Device | None, *, in_pod: bool = True, hidden_by: str | None = None) -> Given:
    return Given(in_pod, (Sign(kind, "the pod has example.com/one"),), hidden_by)


def sees(kind: Device, count: int = 1) -> Usable:
    return Usable(kind=kind, count=count, built=frozenset({kind}), version="2.9")


def blind(*built: Device) -> Usable:
    return Usable(built=frozenset(built), version="2.9+cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_auto_and_its_own_name_take_an_accelerator_that_torch_sees(kind: Device) -> None:
    assert choose(Device.AUTO, 1, sees(kind, 2), has(kind)) == Choice(kind, 1)
    assert choose(kind, 0, sees(kind), NOTHING) == Choice(kind, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_cpu_is_cpu_whatever_is_there(kind: Device) -> None:
    assert choose(Device.CPU, 3, sees(kind), has(kind)) == Choice(Device.CPU)


def test_auto_without_any_accelerator_is_the_cpu() -> None:
    assert choose(Device.AUTO, 0, blind(), Given(in_pod=True)) == Choice(Device.CPU)


@pytest.mark.parametrize("wanted", [Device.AUTO, *KINDS])
@pytest.mark.parametrize("kind", KINDS)
def test_more_ranks_than_accelerators_are_refused(wanted: Device, kind: Device) -> None:
    if wanted not in (Device.AUTO, kind):
        return
    with pytest.raises(ModelError, match=f"rank 2 of this machine needs a {kind} of its own; there are 2"):
        choose(wanted, 2, sees(kind, 2), NOTHING)


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_auto_in_a_pod_whose_accelerator_this_torch_is_not_built_for_is_a_fault_of_the_config(
    kind: Device | None,
) -> None:
    with pytest.raises(SpecError) as raised:
        choose(Device.AUTO, 0, blind(), has(kind))
    (fault,) = raised.value.faults
    assert (fault.path, fault.got) == ("spec.engine.device", "auto")
    assert "the pod has example.com/one; torch is 2.9+cpu" in fault.expected
    assert exit_code_of(raised.value) is ExitCode.CONFIG


@pytest.mark.parametrize("wanted", [Device.AUTO, *KINDS])
@pytest.mark.parametrize("kind", KINDS)
def test_one_that_torch_is_built_for_and_does_not_see_is_the_nodes_fault(
    wanted: Device, kind: Device
) -> None:
    if wanted not in (Device.AUTO, kind):
        return
    with pytest.raises(DeviceLost, match=r"the pod has example\.com/one, but torch 2\.9") as raised:
        choose(wanted, 0, blind(kind), has(kind))
    assert exit_code_of(raised.value) is ExitCode.ACCELERATOR_FAULT


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_a_variable_hides_is_named_with_it(kind: Device) -> None:
    with pytest.raises(SpecError, match="cpu, since X_VISIBLE hides every accelerator, got auto"):
        choose(Device.AUTO, 0, blind(kind), has(kind, hidden_by="X_VISIBLE"))


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_outside_a_pod_a_graphics_card_is_passed_over_with_a_word(kind: Device | None) -> None:
    chosen = choose(Device.AUTO, 0, blind(), has(kind, in_pod=False))
    assert chosen == Choice(Device.CPU, passed_over="the pod has example.com/one")


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_asked_for_by_name_and_not_there_is_refused(kind: Device) -> None:
    with pytest.raises(ModelError, match=f"engine.device is {kind}, but this machine has none, and torch 2"):
        choose(kind, 0, blind(), NOTHING)
    other = next(one for one in KINDS if one not in (kind, Device.ROCM))
    with pytest.raises(ModelError, match=f"engine.device is {kind}, but this machine has none"):
        choose(kind, 0, sees(other), has(other))


def test_torchs_name_for_two_makers_takes_either_and_the_makers_own_one_only() -> None:
    assert choose(Device.CUDA, 0, sees(Device.ROCM), NOTHING).kind is Device.ROCM
    with pytest.raises(ModelError):
        choose(Device.ROCM, 0, sees(Device.CUDA), NOTHING)


@pytest.mark.parametrize("wanted", [Device.AUTO, *KINDS])
def test_an_accelerator_that_nothing_is_known_of_is_refused_and_not_passed_over(wanted: Device) -> None:
    with pytest.raises(ModelError, match="of the kind hpu, which can't be used yet"):
        choose(wanted, 0, Usable(count=1, unknown="hpu"), NOTHING)
