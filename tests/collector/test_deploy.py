"""What is in ``collector/deploy``: checked by the tools of each kind, and what it runs is run, less the containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.collector.otelcol_programs import (
    OTELCOL,
    Service,
    collector_environment,
    running,
)
from support.free_ports import free_pair
from support.waiting import ANSWER_S, HANG_S

ROOT = OTELCOL.parent.parent
DEPLOY = ROOT / "collector" / "deploy"
BIN = Path(sys.executable).parent
UNIT = DEPLOY / "systemd" / "otel-bridge.service"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DRAIN_S = 30


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]


def resources(manifest: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifest.read_text("utf-8")))


def stateful_set(name: str) -> dict[str, Any]:
    return next(
        one
        for one in resources(DEPLOY / "kubernetes" / name)
        if one["kind"] == "StatefulSet"
    )


def instruction(name: str) -> str:
    """The last instruction of the bridge's Dockerfile that begins with *name*, on one line."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    return (
        [line.strip() for line in text.splitlines() if line.startswith(f"{name} ")][-1]
        .removeprefix(name)
        .strip()
    )


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text("utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


COMMANDS = {
    "image": json.loads(instruction("CMD")),
    "compose": compose()["bridge"]["command"],
    "kubernetes": stateful_set("bridge.yaml")["spec"]["template"]["spec"]["containers"][
        0
    ]["args"],
    "systemd": shlex.split(unit()["ExecStart"][0])[1:],
}


@pytest.mark.parametrize("where", COMMANDS)
def test_the_service_starts_as_it_is_written_and_its_probes_pass(
    where: str, tmp_path: Path
) -> None:
    port = free_pair()
    moved = [
        re.sub(
            r".*:431([78])$", lambda found: f"127.0.0.1:{port + int(found[1]) - 7}", one
        )
        for one in COMMANDS[where]
    ]
    env = {
        **collector_environment(),
        "OTEL_BRIDGE_DIR": str(tmp_path / "runs"),
        "HOME": str(tmp_path),
    }
    service = Service(
        [str(BIN / "otel-bridge"), *moved], env, port + 1, tmp_path / "log"
    )

    with running(service):
        pages = {
            page: status(f"http://127.0.0.1:{port + 1}{page}")
            for page in ("/healthz", "/readyz")
        }
        check = json.loads(
            instruction("HEALTHCHECK")
            .partition("CMD ")[2]
            .replace("4318", str(port + 1))
        )
        healthy = subprocess.run(
            [sys.executable, *check[1:]], check=False, timeout=HANG_S
        ).returncode
        code = service.stop()

    assert (pages, healthy, code) == ({"/healthz": 200, "/readyz": 200}, 0, 0)


def status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        return int(answer.status)


def test_the_health_check_fails_where_nothing_listens() -> None:
    check = json.loads(
        instruction("HEALTHCHECK")
        .partition("CMD ")[2]
        .replace("4318", str(free_pair()))
    )

    done = subprocess.run(
        [sys.executable, *check[1:]], capture_output=True, check=False, timeout=HANG_S
    )

    assert done.returncode == 1


@pytest.mark.parametrize(
    "where",
    [
        "image",
        *(
            pytest.param(where, marks=pytest.mark.long)
            for where in ("compose", "kubernetes")
        ),
    ],
)
def test_without_a_token_a_service_that_others_reach_does_not_start(
    where: str, tmp_path: Path
) -> None:
    env = {
        **collector_environment(),
        "OTEL_BRIDGE_TOKEN": "",
        "OTEL_BRIDGE_DIR": str(tmp_path),
    }

    done = subprocess.run(
        [str(BIN / "otel-bridge"), *COMMANDS[where]],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode != 0
    assert "OTEL_BRIDGE_TOKEN" in done.stderr


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.otelcol"])
def test_hadolint_finds_nothing_in_the_images(name: str) -> None:
    done = subprocess.run(
        [str(BIN / "hadolint"), str(DEPLOY / name)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_images_run_as_a_number_that_is_not_root() -> None:
    for name in ("Dockerfile", "Dockerfile.otelcol"):
        users = re.findall(
            r"^USER (.*)$", (DEPLOY / name).read_text("utf-8"), re.MULTILINE
        )
        assert users == ["10001:10001"], name


@pytest.mark.slow
def test_what_the_image_copies_is_enough_to_build_the_package(tmp_path: Path) -> None:
    copied = re.findall(
        r"^COPY (?!--from)(.*) \S+$",
        (DEPLOY / "Dockerfile").read_text("utf-8"),
        re.MULTILINE,
    )
    for name in " ".join(copied).split():
        whole = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "deploy", "otelcol")
        if whole.is_dir():
            shutil.copytree(whole, tmp_path / "src" / name, ignore=ignore)
        else:
            (tmp_path / "src").mkdir(exist_ok=True)
            shutil.copy(whole, tmp_path / "src" / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]

    done = subprocess.run(
        [*build, str(tmp_path / "src")],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packages = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {
        "otel_bridge",
        "otel_bridge_collector",
        "otel_bridge_wandb",
        "otel_bridge_mlflow",
    } <= packages


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_knows_every_field(manifest: Path) -> None:
    command = [str(BIN / "kubernetes-validate"), "--strict", str(manifest)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed for resource ") == len(
        resources(manifest)
    )


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_pods_are_closed_and_keep_their_data_on_a_volume(manifest: Path) -> None:
    spec = stateful_set(manifest.name)["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"] for port in container["ports"]}
    services = [one["spec"] for one in resources(manifest) if one["kind"] == "Service"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert claimed <= mounted == claimed | {volume["name"] for volume in pod["volumes"]}
    assert {
        probe["httpGet"]["port"]
        for key, probe in container.items()
        if key.endswith("Probe")
    } <= ports
    assert {
        port["targetPort"] for service in services for port in service["ports"]
    } <= ports
    token = next(one for one in container["env"] if one["name"] == "OTEL_BRIDGE_TOKEN")
    assert token["valueFrom"] == {
        "secretKeyRef": {"name": "otel-bridge", "key": "token"}
    }


def test_every_stop_waits_longer_than_the_drain() -> None:
    seconds = {
        "compose": int(compose()["bridge"]["stop_grace_period"].removesuffix("s")),
        "kubernetes": stateful_set("bridge.yaml")["spec"]["template"]["spec"][
            "terminationGracePeriodSeconds"
        ],
        "systemd": int(unit()["TimeoutStopSec"][0]),
    }

    assert min(seconds.values()) > DRAIN_S


def test_the_gateways_variables_are_those_of_its_pipeline() -> None:
    read = set(
        re.findall(r"\$\{env:(\w+)", (OTELCOL / "gateway.yaml").read_text("utf-8"))
    )
    given = stateful_set("gateway.yaml")["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]

    assert {one["name"] for one in given} <= read
    agents = set(
        re.findall(r"\$\{env:(\w+)", (OTELCOL / "agent.yaml").read_text("utf-8"))
    )
    assert set(compose()["otelcol"]["environment"]) <= agents


def test_compose_publishes_on_loopback_only_and_demands_a_token() -> None:
    services = compose()

    published = [
        port for service in services.values() for port in service.get("ports", [])
    ]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    for name in ("otelcol", "bridge"):
        assert services[name]["environment"]["OTEL_BRIDGE_TOKEN"].startswith(
            "${OTEL_BRIDGE_TOKEN:?"
        )
    for service in services.values():
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    volumes = {
        volume.partition(":")[0]
        for service in services.values()
        for volume in service["volumes"]
    }
    assert volumes == set(
        yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["volumes"]
    )


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine"
)
def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(
        UNIT.read_text("utf-8").replace(
            "/opt/otel-bridge/bin/otel-bridge", shutil.which("true") or ""
        )
    )
    env = {**os.environ, "SYSTEMD_COLORS": "0"}

    verified = subprocess.run(
        ["systemd-analyze", "verify", str(here)],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    security = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(here)],
        env=env, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip

    assert (verified.returncode, verified.stderr) == (0, "")
    assert security.returncode == 0, security.stdout[-500:]
