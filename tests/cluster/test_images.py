"""The images do what a pod asks of them, as any user, and hold nothing that isn't theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from stage_api import names
from stage_api.outcome import ExitCode
from support.images import BUILD_S, Container, buildah, image, needs_builder

pytestmark = [pytest.mark.timeout(BUILD_S), needs_builder]

MODULES = {"operator": ("stage_api", "stage_operator"), "worker": ("stage_api", "stage_runtime")}
STRANGERS = {
    "operator": ("torch", "diffusers", "numpy", "fastapi", "stage_runtime", "pytest", "setuptools", "tests"),
    "worker": ("kopf", "kubernetes", "stage_operator", "pytest", "tests"),
}
UNCOMPILED = (
    "import importlib.util, pathlib\n"
    "for name in {modules!r}:\n"
    "    for path in pathlib.Path(importlib.util.find_spec(name).origin).parent.rglob('*.py'):\n"
    "        cached = pathlib.Path(importlib.util.cache_from_source(path))\n"
    "        if not cached.is_file():\n"
    "            print(path)\n"
)
PARTS = pytest.mark.parametrize("part", MODULES)


@pytest.fixture(scope="module")
def containers() -> Iterator[dict[str, Container]]:
    made = {part: Container(image(part)) for part in MODULES}
    yield made
    for container in made.values():
        container.remove()


def test_the_operator_tells_how_it_is_set_up(containers: dict[str, Container]) -> None:
    assert "--worker-image" in containers["operator"].output("python", "-m", "stage_operator", "--help")


def test_the_operator_refuses_wrong_settings_with_its_code(containers: dict[str, Container]) -> None:
    done = containers["operator"].run("python", "-m", "stage_operator", "--worker-image=a", "--qps=none")
    assert done.returncode == ExitCode.CONFIG
    assert json.loads(done.stderr.splitlines()[0])["fault"].startswith("--qps")


def test_the_worker_draws_with_each_embedded_model(containers: dict[str, Container]) -> None:
    worker = containers["worker"]
    for model, prompt in (("shapes", "a red circle"), ("digits", "a red 7")):
        worker.output("omnistage", "generate", model, prompt, "--steps", "2", "--output", f"/tmp/{model}")
        assert worker.output("ls", f"/tmp/{model}").endswith(".png")


def test_the_worker_says_which_version_it_is(containers: dict[str, Container]) -> None:
    assert containers["worker"].output("omnistage", "--version").startswith("omnistage ")


def test_a_pod_without_a_config_ends_with_the_code_for_it(containers: dict[str, Container]) -> None:
    assert containers["worker"].run("python", "-m", "stage_runtime", "serve").returncode == ExitCode.CONFIG


@PARTS
def test_nothing_is_in_an_image_that_is_another_s(part: str, containers: dict[str, Container]) -> None:
    for module in STRANGERS[part]:
        done = containers[part].run("python", "-c", f"import {module}")
        assert "ModuleNotFoundError" in done.stderr, module


@PARTS
def test_everything_is_compiled_already(part: str, containers: dict[str, Container]) -> None:
    assert containers[part].output("python", "-c", UNCOMPILED.format(modules=MODULES[part])) == ""


@PARTS
def test_nobody_can_change_what_is_run(part: str, containers: dict[str, Container]) -> None:
    found = containers[part].output(
        "find", "/opt", "(", "-writable", "-o", "!", "-readable", ")", "!", "-type", "l"
    )
    assert found == ""


@PARTS
def test_own_code_is_the_last_layer_and_no_root_runs_it(part: str) -> None:
    about = json.loads(buildah("inspect", "--type=image", image(part)))["OCIv1"]
    steps = [step["created_by"] for step in about["history"]]
    last_copy = max(index for index, step in enumerate(steps) if "COPY" in step)
    assert last_copy == len(steps) - 2, steps[last_copy:]
    assert about["config"]["User"].partition(":")[0].isdigit()
    assert about["config"]["User"] != "0"


def test_the_embedded_models_are_where_the_contract_says(containers: dict[str, Container]) -> None:
    assert containers["worker"].output("ls", names.EMBEDDED_DIR).split() == ["digits", "shapes"]
