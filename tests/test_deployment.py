"""Manifests, image and units: what they say fits KubeRay's schema, our command line, and each other."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from pipeline.cli import app
from pipeline.config import load
from pipeline.execution.resources import find_unmet, list_requests
from tests.conftest import REPOSITORY

KUBERAY = REPOSITORY / "configs" / "kuberay"
CRD = REPOSITORY.parent / "shared" / "schemas" / "kuberay-crds-v1.7.yaml.gz"
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def kustomized(folder: str) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would send."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    command = ["kubectl", "kustomize", str(REPOSITORY / "configs" / folder)]
    built = subprocess.run(command, check=True, capture_output=True, text=True)
    return list(yaml.safe_load_all(built.stdout))


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every Ray resource, as files and as kustomize makes them."""
    for path in sorted(KUBERAY.glob("ray*.yaml")):
        yield path.name, yaml.safe_load(path.read_text())
    if shutil.which("kubectl") is not None:
        yield (
            "kuberay-s3",
            next(m for m in kustomized("kuberay-s3") if m["kind"] == "RayJob"),
        )


MANIFESTS = dict(manifests())


def cluster_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The RayCluster in a RayCluster, or in a RayJob."""
    return manifest["spec"].get("rayClusterSpec", manifest["spec"])


def pods(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The pods of head, workers, and of what submits."""
    cluster = cluster_of(manifest)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    yield from (group["template"]["spec"] for group in groups)
    if "submitterPodTemplate" in manifest["spec"]:
        yield manifest["spec"]["submitterPodTemplate"]["spec"]


@pytest.fixture(scope="module")
def job_schema() -> dict[str, Any]:
    """KubeRay's schema of a RayJob's spec, in which that of a RayCluster lies."""
    if not CRD.exists():
        pytest.skip(f"no schema of KubeRay at {CRD}")
    definition = yaml.load(gzip.decompress(CRD.read_bytes()), Loader=yaml.CSafeLoader)
    version = next(v for v in definition["spec"]["versions"] if v["name"] == "v1")
    return _closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def _closed(schema: Any) -> Any:
    """The same, refusing what it does not name: the API server would drop that without a word."""
    if isinstance(schema, list):
        return [_closed(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: _closed(value)
        for key, value in schema.items()
        if key not in ("format", "default")
    }
    if (
        schema.get("type") == "object"
        and "properties" in schema
        and "additionalProperties" not in schema
    ):
        closed["additionalProperties"] = schema.get(
            "x-kubernetes-preserve-unknown-fields", False
        )
    return closed


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_of_kuberays_schema(name: str, job_schema: dict[str, Any]) -> None:
    """Without a field that it does not know."""
    import jsonschema

    manifest = MANIFESTS[name]
    assert manifest["apiVersion"] == "ray.io/v1"
    assert manifest.keys() <= {"apiVersion", "kind", "metadata", "spec"}
    is_job = manifest["kind"] == "RayJob"
    schema = job_schema if is_job else job_schema["properties"]["rayClusterSpec"]
    faults = list(jsonschema.Draft202012Validator(schema).iter_errors(manifest["spec"]))
    assert [f"{fault.json_path}: {fault.message[:200]}" for fault in faults] == []


def test_the_schema_refuses_a_field_that_it_does_not_know(
    job_schema: dict[str, Any],
) -> None:
    """The check above can fail: a misspelt key deep inside."""
    import jsonschema

    manifest = yaml.safe_load((KUBERAY / "rayjob.yaml").read_text())
    manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][
        0
    ]["imagePolicy"] = "Always"
    (fault,) = jsonschema.Draft202012Validator(job_schema).iter_errors(manifest["spec"])
    assert "'imagePolicy' was unexpected" in fault.message


@pytest.mark.parametrize(
    "name", [name for name, manifest in MANIFESTS.items() if manifest["kind"] == "RayJob"]
)
def test_a_jobs_command_is_one_of_ours(name: str) -> None:
    """It parses, its config loads, its folder is not of one pod, and some worker can do its tasks."""
    manifest = MANIFESTS[name]
    python, m, package, verb, *arguments = shlex.split(manifest["spec"]["entrypoint"])
    assert (python, m, package) == ("python", "-m", "pipeline")
    command = typer.main.get_command(app).commands[verb]  # pyright: ignore[reportAttributeAccessIssue]
    given = command.make_context(verb, arguments).params
    config = load(given["config"], [*given["overrides"], f"run_dir={given['run_dir']}"])
    mounts = [
        mount["mountPath"]
        for mount in next(pods(manifest))["containers"][0]["volumeMounts"]
    ]
    assert config.run_dir.startswith(("s3://", *(f"{mount}/" for mount in mounts)))
    workers = [
        group["template"]["spec"]["containers"][0]
        for group in cluster_of(manifest)["workerGroupSpecs"]
    ]
    limits = [worker["resources"]["limits"] for worker in workers]
    machines = [
        {"CPU": float(each["cpu"]), "memory": _bytes(each["memory"]) * 0.9}
        for each in limits
    ]
    assert find_unmet(list_requests(config), machines) == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_run_our_image_as_a_user_within_limits(name: str) -> None:
    """Not as root, without more rights than they need; probed; the head without tasks; workers from none to some."""
    manifest = MANIFESTS[name]
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
        "version"
    ]
    (ray,) = re.findall(
        r"^ray==(.*)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE
    )
    cluster = cluster_of(manifest)
    assert cluster["rayVersion"] == ray
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for pod in pods(manifest):
        assert pod["securityContext"]["runAsNonRoot"]
        (container,) = pod["containers"]
        assert container["image"] == f"corpusmill:{version}"
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert (
            container["resources"]["limits"]["memory"]
            == container["resources"]["requests"]["memory"]
        )
        assert ("startupProbe" in container) == container["name"].startswith("ray-")
        assert {m["name"] for m in container.get("volumeMounts", [])} == {
            v["name"] for v in pod.get("volumes", [])
        }
    assert cluster["enableInTreeAutoscaling"]
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] == 0 < group["maxReplicas"]


def test_state_lies_in_a_volume_that_many_mount_or_in_a_bucket() -> None:
    """The claim is of the name that the pods give; in the other variant there is none."""
    kinds = {manifest["kind"]: manifest for manifest in kustomized("kuberay")}
    assert kinds["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    claims = [
        pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
        for pod in list(pods(kinds["RayJob"]))[:2]
    ]
    assert claims == [kinds["PersistentVolumeClaim"]["metadata"]["name"]] * 2
    (job,) = kustomized("kuberay-s3")
    for pod in list(pods(job))[:2]:
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "corpusmill-s3"}}]
        assert "emptyDir" in pod["volumes"][0]


def test_the_image_is_of_the_tested_versions_and_holds_every_package() -> None:
    """The same constraints as the tests; each package of the distribution is copied, and let through to the builder."""
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    copied = {
        word
        for line in re.findall(r"^COPY (?!--)(.*) \S+$", dockerfile, re.MULTILINE)
        for word in line.split()
    }
    packages = {
        package.split(".")[0] for package in project["tool"]["setuptools"]["packages"]
    }
    assert packages | {"constraints.txt", "pyproject.toml"} <= copied
    let_through = {
        line[1:]
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    assert let_through == copied
    assert all((REPOSITORY / name).exists() for name in copied)
    assert '--constraint constraints.txt ".[pipeline,s3]"' in dockerfile
    assert f"docker build -t corpusmill:{project['project']['version']} ." in dockerfile
    assert re.search(r"^USER 1000$", dockerfile, re.MULTILINE)


@pytest.mark.parametrize("split", ["ray-head.service", "ray-worker.service"])
def test_a_units_command_is_one_of_rays(split: str) -> None:
    """Every flag is one of `ray start`, and every port is fixed."""
    from ray.scripts.scripts import start

    from tests.cluster.machines import exec_start

    words = shlex.split(exec_start(split))
    assert words[1] == "start"
    known = {
        flag
        for parameter in start.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    flags = [word.split("=")[0] for word in words[2:]]
    assert set(flags) <= known
    ports = {flag for flag in known if re.search(r"-port$", flag)} - {"--gcs-server-port"}
    only_on_head = {"--port", "--dashboard-port", "--ray-client-server-port"}
    assert ports - set(flags) <= (set() if split == "ray-head.service" else only_on_head)


def _bytes(quantity: str) -> float:
    return float(quantity[:-2]) * UNITS[quantity[-2:]]


def test_what_a_job_leaves_behind_is_not_imported() -> None:
    """.rayignore names folders that exist, and no package."""
    names = [
        line
        for line in Path(REPOSITORY / ".rayignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    packages = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"][
        "setuptools"
    ]["packages"]
    assert all((REPOSITORY / name).exists() for name in names)
    assert not set(names) & {package.split(".")[0] for package in packages}
