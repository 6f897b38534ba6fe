"""What tells a process of an accelerator, before torch is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_api.devices import ACCELERATORS, RESOURCES, Device, default_resource, kind_of_resource
from stage_runtime.devices.container_accelerators import find

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def dev(folder: Path, *files: str) -> Path:
    """A /dev with these files beside what every container has."""
    for name in ("null", "shm/x", "fd", *files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (("nvidia0", "nvidiactl", "nvidia-uvm"), Device.CUDA),
        (("nvidia0", "dri/card0", "dri/renderD128"), Device.CUDA),
        (("kfd", "dri/card1", "dri/renderD129"), Device.ROCM),
        (("dri/card0", "dri/renderD128"), Device.XPU),
        (("davinci3", "davinci_manager"), Device.NPU),
    ],
)
def test_the_files_of_an_accelerator_tell_its_kind(
    files: tuple[str, ...], kind: Device, tmp_path: Path
) -> None:
    signs = find(POD, dev(tmp_path, *files)).signs
    assert {sign.kind for sign in signs} == {kind}


@pytest.mark.parametrize(
    "files", [(), ("nvidiactl",), ("nvidia-caps/x",), ("dri/card0",), ("davinci_manager",)]
)
def test_what_a_machine_without_one_may_have_tells_nothing(files: tuple[str, ...], tmp_path: Path) -> None:
    assert find(POD, dev(tmp_path, *files)).signs == ()


@pytest.mark.parametrize(
    ("variable", "value", "kind"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "GPU-5d5ba0d6", Device.CUDA),
        ("NVIDIA_VISIBLE_DEVICES", "0,1", Device.CUDA),
        ("ASCEND_VISIBLE_DEVICES", "3", Device.NPU),
        ("OMNISTAGE_ACCELERATOR", "nvidia.com/gpu", Device.CUDA),
        ("OMNISTAGE_ACCELERATOR", "nvidia.com/mig-1g.10gb", Device.CUDA),
        ("OMNISTAGE_ACCELERATOR", "amd.com/gpu", Device.ROCM),
        ("OMNISTAGE_ACCELERATOR", "gpu.intel.com/i915", Device.XPU),
        ("OMNISTAGE_ACCELERATOR", "huawei.com/Ascend910B", Device.NPU),
        ("OMNISTAGE_ACCELERATOR", "example.com/tpu", None),
    ],
)
def test_what_the_pod_was_told_is_a_sign(
    variable: str, value: str, kind: Device | None, tmp_path: Path
) -> None:
    (sign,) = find({**POD, variable: value}, dev(tmp_path)).signs
    assert sign.kind is kind
    assert value in sign.words


@pytest.mark.parametrize("value", ["", "void", "none", "all", "ALL"])
def test_what_images_set_without_an_accelerator_is_no_sign(value: str, tmp_path: Path) -> None:
    assert find({**POD, "NVIDIA_VISIBLE_DEVICES": value}, dev(tmp_path)).signs == ()


def test_what_the_operator_said_stands_before_what_is_found(tmp_path: Path) -> None:
    environ = {**POD, "OMNISTAGE_ACCELERATOR": "nvidia.com/gpu"}
    first, *others = find(environ, dev(tmp_path, "nvidia0")).signs
    assert first.words == "the pod has nvidia.com/gpu"
    assert [sign.words for sign in others] == [f"{tmp_path}/nvidia0 is there"]


@pytest.mark.parametrize(("environ", "in_pod"), [(POD, True), ({}, False)])
def test_a_pod_is_told_from_a_machine(environ: dict[str, str], in_pod: bool, tmp_path: Path) -> None:
    assert find(environ, dev(tmp_path)).in_pod is in_pod


@pytest.mark.parametrize("facts", [facts for facts in ACCELERATORS.values() if facts.visible])
def test_a_variable_that_hides_every_accelerator_is_named(facts: object, tmp_path: Path) -> None:
    name = facts.visible  # type: ignore[attr-defined]
    assert [find({name: hidden}, tmp_path).hidden_by for hidden in ("", "-1")] == [name, name]
    assert find({name: "0"}, tmp_path).hidden_by is None


def test_every_kind_of_a_cluster_has_a_resource_of_its_own() -> None:
    assert len(set(RESOURCES)) == len(RESOURCES)
    assert all(
        kind_of_resource(default_resource(kind)) is kind for kind in ACCELERATORS if kind is not Device.MPS
    )
    assert (default_resource(Device.AUTO), default_resource(Device.CPU)) == ("nvidia.com/gpu", "")
    assert kind_of_resource("") is kind_of_resource("/x") is None
