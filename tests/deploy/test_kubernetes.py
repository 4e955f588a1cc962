"""The Helm chart and the kustomizations: rendered by Helm and kubectl, checked against schemas."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, lint
from helm_python.errors import HelmError

import topics
from lanewise.settings import Settings
from serving import free_port, running

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "lanewise"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VERSION = "1.30"
HUB = "Qwen/Qwen3-30B-A3B-GGUF:Qwen3-30B-A3B-Q4_K_M.gguf"
VALUES: dict[str, dict[str, Any]] = {
    "as they are": {},
    "a model of the hub for each replica, watched and scaled by KEDA": {
        "image": {"repository": "registry.example/lanewise", "tag": "1", "pullSecrets": ["pull"]},
        "replicas": 3,
        "model": {
            "name": HUB,
            "servedNames": ["qwen3", "qwen3-30b"],
            "hubTokenSecret": "hub",
            "volume": {"kind": "each", "size": "40Gi", "storageClass": "fast"},
        },
        "cpu": 32,
        "memory": "48Gi",
        "settings": {"max_model_len": 16384, "kv_cache_dtype": "int8", "itl_target_ms": 100},
        "auth": {"secret": "keys", "admin": True, "receipts": True},
        "storedPrompts": {
            "kind": "pod",
            "size": "20Gi",
            "remote": "s3://prompts/qwen3",
            "secret": "kv",
            "encrypt": True,
        },
        "ingress": {
            "enabled": True,
            "host": "llm.example",
            "tlsSecret": "tls",
            "className": "nginx",
        },
        "autoscaling": {"kind": "keda", "min": 2, "max": 8},
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}, "dashboard": True},
        "networkPolicy": {"enabled": True},
        "nodeSelector": {"kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "llm", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClass": "high",
    },
    "a shared volume behind the Gateway API, scaled by an HPA": {
        "model": {
            "name": "/models/qwen3-packed",
            "volume": {"kind": "claim", "claim": "models", "readOnly": True},
        },
        "storedPrompts": {"kind": "claim", "claim": "prompts"},
        "gateway": {
            "enabled": True,
            "name": "edge",
            "namespace": "infra",
            "hostnames": ["llm.example"],
            "inferencePool": True,
        },
        "autoscaling": {"kind": "hpa"},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
        "podAnnotations": {"a": "b"},
        "disruption": {"maxUnavailable": "25%"},
    },
    "one replica that keeps files and batches": {
        "data": {"kind": "claim", "claim": "batches"},
        "settings": {"batch_hours": "22-6"},
    },
}
KINDS = (
    {"Service", "Deployment", "PodDisruptionBudget"},
    {
        *("Service", "StatefulSet", "PodDisruptionBudget", "ScaledObject", "NetworkPolicy"),
        *("Ingress", "ServiceMonitor", "PrometheusRule", "ConfigMap"),
    },
    {
        *("Service", "Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler"),
        *("NetworkPolicy", "HTTPRoute", "InferencePool"),
    },
    {"Service", "Deployment", "PodDisruptionBudget"},
)
# Of kinds that are not Kubernetes' own: version, and all that we write of their spec.
CUSTOM = {
    "ServiceMonitor": ("monitoring.coreos.com/v1", {"selector", "endpoints"}),
    "PrometheusRule": ("monitoring.coreos.com/v1", {"groups"}),
    "ScaledObject": (
        "keda.sh/v1alpha1",
        {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "cooldownPeriod", "triggers"},
    ),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", {"parentRefs", "hostnames", "rules"}),
    "InferencePool": (
        "inference.networking.k8s.io/v1",
        {"selector", "targetPorts", "endpointPickerRef"},
    ),
}
BROKEN = [
    ({"cpu": 1.5}, "cpu"),
    ({"cpu": "4"}, "cpu"),
    ({"memory": "much"}, "memory"),
    ({"replica": 2}, "replica"),
    ({"settings": {"max_seqz": 3}}, "max_seqz"),
    ({"model": {"name": "no slash"}}, "name"),
    ({"model": {"volume": {"kind": "cloud"}}}, "kind"),
    ({"model": {"volume": {"kind": "claim"}}}, "model.volume.claim names the claim"),
    ({"storedPrompts": {"kind": "claim"}}, "storedPrompts.claim names the claim"),
    ({"storedPrompts": {"kind": "host"}}, "storedPrompts.path names the directory"),
    ({"storedPrompts": {"kind": "pod", "remote": "ftp://x"}}, "remote"),
    ({"data": {"kind": "claim"}}, "data.claim names the claim"),
    ({"data": {"kind": "host"}}, "data.path names the directory"),
    ({"data": {"kind": "pod"}, "replicas": 2}, "of one replica"),
    ({"ingress": {"enabled": True}}, "ingress.host is the name"),
    ({"autoscaling": {"kind": "both"}}, "kind"),
]


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    with Chart.load(CHART) as chart:
        files = chart.render(values=values, name="lanewise", namespace="llm")
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def check(objects: list[dict[str, Any]]) -> None:
    for one in objects:
        if one["kind"] in CUSTOM:
            version, spec = CUSTOM[one["kind"]]
            assert one["apiVersion"] == version
            assert one["spec"].keys() <= spec
        else:
            kubernetes_validate.validate(one, VERSION, strict=True)


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> dict[str, Any]:
    [found] = [one for one in objects if one["kind"] in kinds]
    return found


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec = of_kind(objects, "Deployment", "StatefulSet")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.mark.parametrize(
    ("values", "kinds"), list(zip(VALUES.values(), KINDS, strict=True)), ids=list(VALUES)
)
def test_what_the_chart_gives_is_valid(values, kinds):
    objects = rendered(values)
    assert {one["kind"] for one in objects} == kinds
    check(objects)
    pod = pod_of(objects)
    names = {f"LANEWISE_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert resources["requests"]["cpu"].isdigit()
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        claimed = (
            {"models"} if values.get("model", {}).get("volume", {}).get("kind") == "each" else set()
        )
        assert mounted <= {volume["name"] for volume in pod["volumes"]} | claimed
        set_here = {one["name"] for one in container["env"]}
        assert {name for name in set_here if name.startswith("LANEWISE_")} <= names
    assert pod["terminationGracePeriodSeconds"] > 10 + 120
    downloads = values.get("model", {}).get("name") == HUB
    assert [one["args"] for one in pod.get("initContainers", ())] == [["pull", HUB]] * downloads


def test_the_chart_has_no_flaw_that_helm_knows_of():
    assert lint(CHART)["errors"] == []


@pytest.mark.parametrize(("values", "named"), BROKEN, ids=str)
def test_a_wrong_value_is_refused_by_name(values, named):
    with pytest.raises(HelmError, match=re.escape(named)):
        rendered(values)


def test_the_schema_knows_every_value_and_every_setting():
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(have: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        known = schema.get("properties", {})
        assert have.keys() == known.keys() - {"global"}, path
        for key, value in have.items():
            if isinstance(value, dict) and "properties" in known[key]:
                compare(value, known[key], f"{path}.{key}")

    compare(values, SCHEMA, "")
    pod = pod_of(
        rendered(VALUES["a model of the hub for each replica, watched and scaled by KEDA"])
    )
    own = {one["name"] for one in pod["containers"][0]["env"]} | {"LANEWISE_API_KEY"}
    own |= {"LANEWISE_ADMIN_API_KEY", "LANEWISE_DATA_DIR"}
    settings = {field.name for field in dataclasses.fields(Settings)}
    listed = set(SCHEMA["properties"]["settings"]["propertyNames"]["enum"])
    given = {"max_model_len", "kv_cache_dtype", "itl_target_ms"}
    assert listed == {name for name in settings if f"LANEWISE_{name.upper()}" not in own} | given


@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_a_server_with_the_pods_environment_answers_its_probes():
    [container] = pod_of(rendered({}))["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    port = free_port()
    environment |= {"LANEWISE_PORT": str(port), "LANEWISE_HOST": "127.0.0.1"}
    environment |= {"LANEWISE_THREADS": "1", "LANEWISE_LAME_DUCK_S": "0"}
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "lanewise", "serve"]
    paths = {
        container[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "readiness", "liveness")
    }
    with running(command, f"{url}/health/ready", env=environment):
        for path in (*paths, "/metrics"):
            with urllib.request.urlopen(url + path) as answer:
                assert answer.status == 200


def test_its_alerts_are_those_of_prometheus_and_its_dashboards_are_grafanas():
    objects = rendered({"monitoring": {"enabled": True, "dashboard": True}})
    rules = of_kind(objects, "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    elsewhere = rendered(
        {"monitoring": {"enabled": True, "runbooks": "https://wiki.example/pages/"}}
    )
    [group] = of_kind(elsewhere, "PrometheusRule")["spec"]["groups"]
    pages = {one["annotations"]["runbook_url"] for one in group["rules"]}
    assert "https://wiki.example/pages/LanewiseDown.md" in pages
    assert all(page.startswith("https://wiki.example/pages/L") for page in pages)
    files = (DEPLOY / "grafana" / "dashboards").iterdir()
    kept = {path.name: path.read_text() for path in files}
    assert of_kind(objects, "ConfigMap")["data"] == kept
    [endpoint] = of_kind(objects, "ServiceMonitor")["spec"]["endpoints"]
    [port] = of_kind(objects, "Service")["spec"]["ports"]
    assert endpoint["port"] == port["name"]


def kustomized(folder: str) -> list[dict[str, Any]]:
    program = shutil.which("kubectl")
    if program is None:
        topics.skip("kubectl", "no kubectl 1.27 or newer on this machine")
    command = [program, "kustomize", str(DEPLOY / "kustomize" / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_the_plain_manifests_are_what_the_chart_gives():
    def plain(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        text = json.dumps(sorted(objects, key=lambda one: str(one["kind"])))
        return json.loads(text.replace(', "app.kubernetes.io/managed-by": "Helm"', ""))

    assert plain(kustomized("base")) == plain(rendered({}))


def test_the_example_of_an_overlay_is_valid():
    objects = kustomized("overlays/graviton")
    check(objects)
    pod = pod_of(objects)
    [container], [download] = pod["containers"], pod["initContainers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["LANEWISE_MODEL"] == download["args"][1]
    assert {"LANEWISE_LAME_DUCK_S", "LANEWISE_API_KEY_FILE"} <= environment.keys()
    assert {one["metadata"]["namespace"] for one in objects} == {"lanewise"}
