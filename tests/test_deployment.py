"""Manifests, image and systemd services agree with KubeRay's schema and our commands."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from ray._private.runtime_env.packaging import create_package

from pipeline.capacity.calibration import read_calibration
from pipeline.capacity.estimate import estimate
from pipeline.capacity.model import Cluster
from pipeline.capacity.resources import find_unmet, list_requests
from pipeline.cli import app
from pipeline.config import RunConfig, load
from tests.conftest import REPOSITORY

KUBERAY = REPOSITORY / "configs" / "kuberay"
CRD = REPOSITORY.parent / "shared" / "schemas" / "kuberay-crds-v1.7.yaml.gz"
BYTES_PER_SUFFIX = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def kustomize(folder: str) -> list[dict[str, Any]]:
    """Return the output of `kubectl kustomize`."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    command = ["kubectl", "kustomize", str(REPOSITORY / "configs" / folder)]
    built = subprocess.run(command, check=True, capture_output=True, text=True)
    return list(yaml.safe_load_all(built.stdout))


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every Ray resource, from files and from kustomize."""
    for path in sorted(KUBERAY.glob("ray*.yaml")):
        yield path.name, yaml.safe_load(path.read_text())
    if shutil.which("kubectl") is not None:
        yield (
            "kuberay-s3",
            next(m for m in kustomize("kuberay-s3") if m["kind"] == "RayJob"),
        )


MANIFESTS = dict(manifests())
JOBS = [name for name, manifest in MANIFESTS.items() if manifest["kind"] == "RayJob"]


def get_cluster(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the RayCluster of a RayCluster or a RayJob."""
    return manifest["spec"].get("rayClusterSpec", manifest["spec"])


def list_pods(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the pods of the head, the workers and the submitter."""
    cluster = get_cluster(manifest)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    yield from (group["template"]["spec"] for group in groups)
    if "submitterPodTemplate" in manifest["spec"]:
        yield manifest["spec"]["submitterPodTemplate"]["spec"]


@pytest.fixture(scope="module")
def job_schema() -> dict[str, Any]:
    """KubeRay's schema of the spec of a RayJob, which contains that of a RayCluster."""
    if not CRD.exists():
        pytest.skip(f"no schema of KubeRay at {CRD}")
    definition = yaml.load(gzip.decompress(CRD.read_bytes()), Loader=yaml.CSafeLoader)
    version = next(v for v in definition["spec"]["versions"] if v["name"] == "v1")
    return _forbid_unknown_fields(
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    )


def _forbid_unknown_fields(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, which the API server drops silently."""
    if isinstance(schema, list):
        return [_forbid_unknown_fields(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: _forbid_unknown_fields(value)
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
def test_manifests_follow_the_schema_of_kuberay(
    name: str, job_schema: dict[str, Any]
) -> None:
    """They have no unknown field."""
    import jsonschema

    manifest = MANIFESTS[name]
    assert manifest["apiVersion"] == "ray.io/v1"
    assert manifest.keys() <= {"apiVersion", "kind", "metadata", "spec"}
    is_job = manifest["kind"] == "RayJob"
    schema = job_schema if is_job else job_schema["properties"]["rayClusterSpec"]
    faults = list(jsonschema.Draft202012Validator(schema).iter_errors(manifest["spec"]))
    assert [f"{fault.json_path}: {fault.message[:200]}" for fault in faults] == []


def read_config(manifest: dict[str, Any], *overrides: str) -> RunConfig:
    """Return the config of a job's command."""
    python, m, package, verb, *arguments = shlex.split(manifest["spec"]["entrypoint"])
    assert (python, m, package) == ("python", "-m", "pipeline")
    command = typer.main.get_command(app).commands[verb]  # pyright: ignore[reportAttributeAccessIssue]
    given = command.make_context(verb, arguments).params
    run_dir = f"run_dir={given['run_dir']}"
    return load(given["config"], [*given["overrides"], run_dir, *overrides])


@pytest.mark.parametrize("name", JOBS)
def test_a_snapshot_fits_into_the_pods(name: str) -> None:
    """The plan of a whole one, with near-duplicates and in a bucket, has no warning."""
    manifest = MANIFESTS[name]
    groups = get_cluster(manifest)
    head = groups["headGroupSpec"]["template"]["spec"]["containers"][0]
    group = groups["workerGroupSpecs"][0]
    pod = group["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    (scratch,) = (each for each in pod["volumes"] if each["name"] == "scratch")
    cluster = Cluster(
        nodes=group["maxReplicas"],
        cores=int(limits["cpu"]),
        memory_gb=_bytes(limits["memory"]) / 1e9,
        scratch_gb=_bytes(scratch["emptyDir"]["sizeLimit"]) / 1e9,
        head_memory_gb=_bytes(head["resources"]["limits"]["memory"]) / 1e9,
    )
    settings = ("annotate.minhash={}", "fuzzy_dedup={}", "run_dir=s3://bucket/run")
    merge = "engine.phases.fuzzy_merge.memory_mb=32000"
    config = read_config(manifest, *settings, merge)
    assert estimate(config, read_calibration(), cluster, num_files=90_000).warnings == ()


@pytest.mark.parametrize("name", JOBS)
def test_the_command_of_a_job_is_valid(name: str) -> None:
    """Its config loads, all pods see its folder, and a worker can run its tasks."""
    manifest = MANIFESTS[name]
    config = read_config(manifest)
    mounts = [
        mount["mountPath"]
        for mount in next(list_pods(manifest))["containers"][0]["volumeMounts"]
    ]
    assert config.run_dir.startswith(("s3://", *(f"{mount}/" for mount in mounts)))
    assert config.storage.scratch_dir in mounts
    workers = [
        group["template"]["spec"]["containers"][0]
        for group in get_cluster(manifest)["workerGroupSpecs"]
    ]
    limits = [worker["resources"]["limits"] for worker in workers]
    machines = [
        {"CPU": float(each["cpu"]), "memory": _bytes(each["memory"]) * 0.9}
        for each in limits
    ]
    assert find_unmet(list_requests(config), machines) == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_run_our_image_as_a_user_within_limits(name: str) -> None:
    """Not as root and without extra rights; with probes; the head runs no tasks."""
    manifest = MANIFESTS[name]
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
        "version"
    ]
    (ray,) = re.findall(
        r"^ray==(.*)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE
    )
    cluster = get_cluster(manifest)
    assert cluster["rayVersion"] == ray
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for pod in list_pods(manifest):
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


def test_runs_are_stored_in_a_shared_volume_or_a_bucket() -> None:
    """The pods mount the claim by its name; the bucket variant has no claim."""
    kinds = {manifest["kind"]: manifest for manifest in kustomize("kuberay")}
    assert kinds["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    claims = [
        pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
        for pod in list(list_pods(kinds["RayJob"]))[:2]
    ]
    assert claims == [kinds["PersistentVolumeClaim"]["metadata"]["name"]] * 2
    (job,) = kustomize("kuberay-s3")
    for pod in list(list_pods(job))[:2]:
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "corpusmill-s3"}}]
        assert "emptyDir" in pod["volumes"][0]


def test_the_image_has_every_package() -> None:
    """It copies every package, and its build context has what it copies."""
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


@pytest.mark.parametrize("service", ["ray-head.service", "ray-worker.service"])
def test_the_command_of_a_service_is_valid(service: str) -> None:
    """Each flag is an option of `ray start`, and every port is fixed."""
    from ray.scripts.scripts import start

    from tests.cluster.machines import read_start_command

    words = shlex.split(read_start_command(service))
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
    assert ports - set(flags) <= (set() if service == "ray-head.service" else only_on_head)


def _bytes(quantity: str) -> float:
    return float(quantity[:-2]) * BYTES_PER_SUFFIX[quantity[-2:]]


def test_outputs_of_jobs_are_ignored_by_ray(tmp_path: Path) -> None:
    """`ray job submit --working-dir .` uploads the packages, and neither datasets nor exports."""
    clone = tmp_path / "clone"
    files = ["ccnet.yaml", "pipeline/export.py", "loader/export.py"]
    outputs = [
        "runs/ccnet/log.jsonl",
        "exports/ccnet/a.parquet",
        "out/a.tar",
        ".venv/bin/ray",
    ]
    for file in (*files, *outputs):
        path = clone / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in (".gitignore", ".rayignore"):
        shutil.copy(REPOSITORY / name, clone)
    package = tmp_path / "package.zip"
    create_package(str(clone), package, include_gitignore=True)
    with zipfile.ZipFile(package) as opened:
        assert {*opened.namelist()} == {*files, ".gitignore", ".rayignore"}


def test_folders_that_ray_ignores_exist() -> None:
    """In every clone; .gitignore has the others."""
    lines = (REPOSITORY / ".rayignore").read_text().splitlines()
    names = [line for line in lines if not line.startswith("#")]
    assert [name for name in names if not (REPOSITORY / name).exists()] == []
