"""The Helm chart: what it renders, what it refuses, and what a real cluster makes of it."""

from __future__ import annotations

import base64
import json
import os
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernelbroker_server.config import PREFIX, Settings
from pydantic import BaseModel

from compose import images
from tests.compose.support import DEADLINE_S, ROOT, run
from tests.support.documentation import blocks_of
from tests.support.requires import HELM, IMAGE, requires

CHART = ROOT / "compose/kubernetes"
CATALOGUE = images.load()
CLUSTER = Path("/var/tmp/kernelbroker-k8s-chart")
"""Where this file starts a cluster of its own, if TEST_KUBECONFIG names none."""

pytestmark = requires("helm")

SEVERAL = {
    "broker.replicas": 3,
    "store.urlFrom.name": "database",
    "store.urlFrom.key": "url",
    "autoscaling.enabled": True,
}
EVERYTHING = SEVERAL | {
    "ingress.enabled": True,
    "ingress.className": "nginx",
    "ingress.tlsSecret": "certificate",
    "imagePull.policy": "Never",
    "imagePull.secrets": ["registry"],
    "sandboxes.runtimeClass": "gvisor",
    "sandboxes.nodeSelector.pool": "sandboxes",
    "sandboxes.tolerations": [{"key": "sandboxes", "operator": "Exists"}],
    "sandboxes.quota": {"pods": "200", "limits.memory": "400Gi"},
    "broker.nodeSelector.pool": "brokers",
    "broker.tolerations": [{"operator": "Exists"}],
    "broker.env": [{"name": "KERNELBROKER_LOG_FORMAT", "value": "json"}],
    "broker.podAnnotations.note": "one",
    "broker.storage.storageClass": "fast",
    "broker.priorityClassName": "high",
    "networkPolicies.clients": [{"podSelector": {"matchLabels": {"app": "agent"}}}],
    "networkPolicies.brokerEgress": [{"ports": [{"port": 5432, "protocol": "TCP"}]}],
    "networkPolicies.apiServer": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    "networkPolicies.resolvers": [{"ipBlock": {"cidr": "10.0.0.2/32"}}],
    "service.type": "LoadBalancer",
    "service.annotations.note": "two",
    "serviceMonitor.labels.release": "prometheus",
}


def helm(
    *words: str | Path, values: Mapping[str, object] | None = None, fails: bool = False
) -> str:
    """Run helm; returns its output."""
    options = [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]
    return run(HELM / "helm", *words, *options, fails=fails)


def rendered(values: Mapping[str, object] | None = None, *options: str) -> list[dict[str, Any]]:
    """The objects of a release `kb` in a namespace of this name."""
    text = helm("template", "kb", CHART, "--namespace=kb", *options, values=values)
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def environment(objects: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The broker's variables by their names."""
    (broker,) = of_kind(objects, "StatefulSet")
    (container,) = broker["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each for each in container["env"]}


# What it renders


def test_helm_finds_no_fault() -> None:
    """`helm lint` is content with the values as they are, and with all of them set."""
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, values=EVERYTHING)


def test_the_values_have_each_image() -> None:
    """The values are those that images.py prints, and broker, sandboxes and templates get them."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["images"] == images.values(CATALOGUE, {})
    environ = {"IMAGE_PREFIX": "r.example/team/", "IMAGE_VERSION": "1.2"}
    named = json.loads(run("python3", "compose/images.py", "values", **environ))["images"]
    parts = [image.part for image in CATALOGUE.sandboxes()]
    settings = "".join(
        f'[templates.{part}]\nimage = "{{{{ index .Values.images "{part}" }}}}"\n' for part in parts
    )
    objects = rendered({"images": named, "broker.settings": settings})
    (broker,) = of_kind(objects, "StatefulSet")
    (container,) = broker["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "r.example/team/kernelbroker-broker:1.2"
    kernel = environment(objects)["KERNELBROKER_KUBERNETES__IMAGE"]["value"]
    assert kernel == "r.example/team/kernelbroker-kernel:1.2"
    (config,) = of_kind(objects, "ConfigMap")
    templates = tomllib.loads(config["data"]["broker.toml"])["templates"]
    assert {part: each["image"] for part, each in templates.items()} == {
        part: f"r.example/team/kernelbroker-{part}:1.2" for part in parts
    }


def test_the_version_is_that_of_the_tree() -> None:
    """The chart has the version of the broker."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == images.version()


def test_each_variable_is_a_setting() -> None:
    """The broker knows each variable and setting that it gets."""
    names = set(environment(rendered(EVERYTHING))) - {"POD_NAME", "POD_IP"}
    for name in names - {f"{PREFIX}CONFIG"}:
        model: Any = Settings
        for part in name.removeprefix(PREFIX).lower().split("__"):
            assert issubclass(model, BaseModel)
            assert part in model.model_fields, f"{name}: no setting {part}"
            model = model.model_fields[part].annotation
    (config,) = of_kind(rendered(), "ConfigMap")
    Settings(**tomllib.loads(config["data"]["broker.toml"]))


def test_several_brokers() -> None:
    """Brokers on one store have a secret and an address for each other, and directories of their own."""
    objects = rendered(SEVERAL)
    variables = environment(objects)
    assert variables["KERNELBROKER_STORE"]["valueFrom"]["secretKeyRef"] == {
        "name": "database",
        "key": "url",
    }
    (secret,) = of_kind(objects, "Secret")
    assert variables["KERNELBROKER_CLUSTER__SECRET"]["valueFrom"]["secretKeyRef"] == {
        "name": secret["metadata"]["name"],
        "key": "cluster-secret",
    }
    assert {"token", "metrics-token", "cluster-secret"} == set(secret["data"])
    assert variables["KERNELBROKER_CLUSTER__URL"]["value"] == "http://$(POD_IP):8720"
    assert variables["KERNELBROKER_KUBERNETES__DATA_DIR"]["value"].endswith("/$(POD_NAME)")
    names = list(variables)  # Kubernetes replaces only what is named before
    assert names.index("POD_IP") < names.index("KERNELBROKER_CLUSTER__URL")
    assert names.index("POD_NAME") < names.index("KERNELBROKER_KUBERNETES__DATA_DIR")
    assert "KERNELBROKER_CLUSTER__SECRET" not in environment(rendered())


def test_the_values_of_the_page(tmp_path: Path) -> None:
    """The chart takes the values that docs/helm.md shows, and the broker the settings in them."""
    (block,) = (each for each in blocks_of("helm.md") if each.text.startswith("broker:"))
    file = tmp_path / "values.yaml"
    file.write_text(block.text)
    (config,) = of_kind(rendered(None, f"--values={file}"), "ConfigMap")
    settings = Settings(**tomllib.loads(config["data"]["broker.toml"]))
    assert settings.templates["code"].image == "kernelbroker-code:latest"
    assert settings.sandbox.orphan_grace == 300


def test_autoscaling_by_the_queue() -> None:
    """The autoscaler asks for a metric that the broker has, owns the number of brokers, and ends none."""
    objects = rendered(SEVERAL)
    (autoscaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    (metric,) = autoscaler["spec"]["metrics"]
    source = (ROOT / "broker/kernelbroker_server/telemetry/metrics.py").read_text()
    name = metric["pods"]["metric"]["name"].removeprefix("kernelbroker_")
    assert f'"{name}": ("Callers that wait for a sandbox"' in source
    (broker,) = of_kind(objects, "StatefulSet")
    assert "replicas" not in broker["spec"]
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == broker["metadata"]["name"]
    assert autoscaler["spec"]["behavior"]["scaleDown"] == {"selectPolicy": "Disabled"}


def test_a_service_monitor_needs_its_kind() -> None:
    """It is made only where the cluster knows the kind, and scrapes each broker once."""
    assert not of_kind(rendered(), "ServiceMonitor")
    objects = rendered(None, "--api-versions=monitoring.coreos.com/v1")
    (monitor,) = of_kind(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = of_kind(objects, "Service")
    scraped = [each for each in services if wanted <= each["metadata"]["labels"].items()]
    assert [each["spec"]["clusterIP"] for each in scraped] == ["None"]
    credentials = monitor["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert credentials["key"] == "metrics-token"


def test_policies_deny_by_default() -> None:
    """Sandboxes may do nothing; the broker reaches their gateways, and `open` no private network."""
    policies = {
        each["metadata"]["name"]: each["spec"] for each in of_kind(rendered(), "NetworkPolicy")
    }
    assert set(policies) == {
        "kb-kernelbroker",
        "kb-kernelbroker-default-deny",
        "kb-kernelbroker-from-broker",
        "kb-kernelbroker-open",
    }
    deny = policies["kb-kernelbroker-default-deny"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    broker = policies["kb-kernelbroker"]
    assert broker["policyTypes"] == ["Ingress", "Egress"]
    (entry,) = policies["kb-kernelbroker-from-broker"]["ingress"]
    assert entry["ports"] == [{"port": 8888, "protocol": "TCP"}]
    (peer,) = entry["from"]
    assert peer["podSelector"] == broker["podSelector"]
    public = policies["kb-kernelbroker-open"]
    assert public["podSelector"]["matchLabels"] == {"kernelbroker.io/network": "open"}
    block = public["egress"][0]["to"][0]["ipBlock"]
    assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(block["except"])
    assert not of_kind(rendered({"networkPolicies.enabled": False}), "NetworkPolicy")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"broker.replicas": 2}, "set store.urlFrom"),
        ({"autoscaling.enabled": True}, "set store.urlFrom"),
        ({"sandboxes.namespace": "kb"}, "a namespace of their own"),
        ({"broker.replica": 1}, "'replica' not allowed"),
        ({"images.kernel": ""}, "/images/kernel"),
        ({"imagePull.policy": "Sometimes"}, "/imagePull/policy"),
        ({"service.port": 0}, "/service/port"),
        ({"store.urlFrom.name": "database"}, "/store/urlFrom"),
        ({"networkPolicies.privateNetworks": ["ten"]}, "/networkPolicies/privateNetworks/0"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, object], said: str) -> None:
    """Wrong values are refused before anything is installed, and the message names them."""
    assert said in helm("template", "kb", CHART, "--namespace=kb", values=values, fails=True)


# A real cluster

CRD_NAME = "servicemonitors.monitoring.coreos.com"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CRD_NAME},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {
            "kind": "ServiceMonitor",
            "plural": "servicemonitors",
            "singular": "servicemonitor",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


class Installed:
    """The release `kb` in a cluster."""

    def __init__(self, kubeconfig: Path, broker_image: str) -> None:
        program = kubeconfig.parents[1] / "bundle/bin/kubectl"
        self._kubectl = [program if program.exists() else "kubectl", f"--kubeconfig={kubeconfig}"]
        self._options = ("--namespace=kb", f"--kubeconfig={kubeconfig}")
        # The cluster pulls no images and gives no disks.
        self._values = {
            "imagePull.policy": "Never",
            "images.broker": f"{broker_image}:latest",
            "images.kernel": IMAGE,
            "broker.storage.persistent": False,
            "broker.resources.requests": {"cpu": "50m", "memory": "100Mi"},
            "broker.drainSeconds": 1,
            "broker.settings": "[pool]\nmin_size = 1\nmax_size = 2\n"
            "[kubernetes]\nrequire_network_policies = false\n",
        }

    def helm(
        self, verb: str, *words: str | Path, values: Mapping[str, object] | None = None
    ) -> str:
        return helm(verb, "kb", *words, *self._options, values=values)

    def upgrade(self, values: Mapping[str, object] | None = None) -> None:
        words = ("--install", "--create-namespace", CHART)
        self.helm("upgrade", *words, values={**self._values, **(values or {})})

    def kubectl(self, *words: str | Path, fails: bool = False) -> str:
        return run(*self._kubectl, *words, fails=fails)

    def get(self, kind: str, namespace: str = "kb") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            self.kubectl("get", kind, "--namespace", namespace, "--output=json")
        )["items"]
        return found

    def apply(self, manifest: Mapping[str, object], directory: Path) -> None:
        file = directory / "manifest.json"
        file.write_text(json.dumps(manifest))
        self.kubectl("apply", "-f", file)

    def may(self, verb: str, what: str, namespace: str, *options: str) -> bool:
        """Whether the broker's service account may do it."""
        who = "--as=system:serviceaccount:kb:kb-kernelbroker"
        argv = [
            *self._kubectl,
            "auth",
            "can-i",
            verb,
            what,
            who,
            f"--namespace={namespace}",
            *options,
        ]
        # kubectl ends with 1 for a no.
        answer = run("sh", "-c", '"$@" || true', "sh", *argv).split()[-1]
        assert answer in ("yes", "no")
        return answer == "yes"

    def remove(self) -> None:
        """Everything is gone afterwards."""
        self.helm("uninstall", "--ignore-not-found")
        self.kubectl("delete", "namespace", "kb", "kb-kernelbroker-sandboxes", "--ignore-not-found")
        self.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found")


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    if "TEST_KUBECONFIG" in os.environ:
        yield Path(os.environ["TEST_KUBECONFIG"])
        return
    script, own = ROOT / "tests/support/get_cluster", {"K8S_NET": "10.203", "K8S_NAME": "kube2"}
    try:
        run(script, "up", CLUSTER, **own)
        yield CLUSTER / "state/kubeconfig"
    finally:
        run(script, "down", CLUSTER, **own)


@pytest.fixture(scope="module")
def installed(kubeconfig: Path, broker_image: str) -> Iterator[Installed]:
    if (load := kubeconfig.parents[1] / "bundle/load-image").exists():
        run(load, broker_image, cwd=load.parent, K8S_STATE=kubeconfig.parent)
    release = Installed(kubeconfig, broker_image)
    try:
        release.upgrade()
        yield release
    finally:
        release.remove()


class TestCluster:
    pytestmark = [
        pytest.mark.sandbox,
        requires("root", "docker"),
        requires("the cluster's archive"),
        pytest.mark.long,
    ]

    def test_a_cell_runs(self, installed: Installed) -> None:
        """The broker starts with the rights and the standard of the chart; cells run in Pods."""
        words = ("--namespace=kb", "--for=condition=Ready", "--timeout=110s")
        installed.kubectl("wait", "pod/kb-kernelbroker-0", *words)
        (pod,) = installed.get("pods")
        url = f"http://{pod['status']['podIP']}:8720"
        words = ("secret", "kb-kernelbroker", "--namespace=kb", "--output=jsonpath={.data}")
        data = json.loads(installed.kubectl("get", *words))
        tokens = {key: base64.b64decode(value).decode() for key, value in data.items()}

        def get(path: str, token: str, body: object = None) -> str:
            request = urllib.request.Request(
                f"{url}{path}",
                data=None if body is None else json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {token}"},
            )
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                return str(response.read().decode())

        code = "import os\nprint(6 * 7, os.getuid())"
        assert "42 1000" in get("/api/v1/exec", tokens["token"], {"code": code})
        health = json.loads(get("/health", tokens["token"]))
        assert health["backend"]["namespace"] == "kb-kernelbroker-sandboxes"
        assert "enforced" in health["backend"]["network_policies"]
        assert "kernelbroker_pool_waiters{" in get("/metrics", tokens["metrics-token"])
        assert installed.get("pods", "kb-kernelbroker-sandboxes")

    def test_the_broker_is_restricted(self, installed: Installed) -> None:
        """The broker's own Pod fits the standard `restricted`, and drains stop one broker at a time."""
        standard = "pod-security.kubernetes.io/enforce=restricted"
        dry = ("namespace", "kb", standard, "--dry-run=server", "--overwrite")
        assert "Warning" not in installed.kubectl("label", *dry)
        (budget,) = installed.get("poddisruptionbudgets")
        assert budget["spec"]["maxUnavailable"] == 1
        assert len(installed.get("networkpolicies", "kb-kernelbroker-sandboxes")) == 3

    @pytest.mark.parametrize("values", [{}, SEVERAL, EVERYTHING], ids=["plain", "several", "all"])
    def test_the_api_takes_all_values(
        self, installed: Installed, values: dict[str, object], tmp_path: Path
    ) -> None:
        """The API server takes each object without a warning, whatever is set."""
        file = tmp_path / "objects.yaml"
        # What a StatefulSet stores cannot be changed; this one is not stored.
        objects = rendered(values)
        for each in of_kind(objects, "StatefulSet"):
            each["metadata"]["name"] += "-dry"
        file.write_text(yaml.safe_dump_all(objects))
        said = installed.kubectl(
            "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", file
        )
        assert len(said.splitlines()) == len(objects), said
        assert "Warning" not in said

    def test_rights(self, installed: Installed) -> None:
        """The broker may do what its backend calls, in the namespace of sandboxes, and nothing else."""
        own = "kb-kernelbroker-sandboxes"
        allowed = {
            "pods": {"create", "get", "list", "watch", "delete"},
            "pods/resize": {"patch"},
            "secrets": {"create", "get"},
        }
        for what, verbs in allowed.items():
            resource, _, part = what.partition("/")
            options = [f"--subresource={part}"] if part else []
            for verb in ("create", "get", "list", "watch", "update", "patch", "delete"):
                assert installed.may(verb, resource, own, *options) == (verb in verbs), (verb, what)
        assert not installed.may("create", "pods", own, "--subresource=exec")
        assert not installed.may("get", "configmaps", own)
        assert not installed.may("create", "pods", "kb")
        assert not installed.may("get", "secrets", "kb")
        assert not installed.may("get", "nodes", own)

    def test_a_privileged_pod_is_refused(self, installed: Installed, tmp_path: Path) -> None:
        """The namespace of sandboxes takes no Pod that is less restricted than a sandbox."""
        file = tmp_path / "pod.yaml"
        container = {"name": "a", "image": "a", "securityContext": {"privileged": True}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        file.write_text(yaml.safe_dump(pod | {"spec": {"containers": [container]}}))
        words = ["create", "--namespace=kb-kernelbroker-sandboxes", "--dry-run=server", "-f", file]
        assert 'violates PodSecurity "restricted' in installed.kubectl(*words, fails=True)

    def test_an_upgrade_keeps_the_tokens(self, installed: Installed, tmp_path: Path) -> None:
        """Tokens stay; what the cluster learns (the kind ServiceMonitor) is used by the next upgrade."""
        before = {each["metadata"]["name"]: each.get("data") for each in installed.get("secrets")}
        assert not installed.kubectl(
            "api-resources", "--api-group=monitoring.coreos.com", "--no-headers"
        )
        installed.apply(CRD, tmp_path)
        installed.kubectl("wait", "--for=condition=established", f"crd/{CRD_NAME}")
        installed.upgrade({"broker.settings": "[pool]\nmin_size = 1\n"})
        after = {each["metadata"]["name"]: each.get("data") for each in installed.get("secrets")}
        assert after["kb-kernelbroker"] == before["kb-kernelbroker"]
        assert len(installed.get("servicemonitors")) == 1
        (config,) = (
            each
            for each in installed.get("configmaps")
            if each["metadata"]["name"] == "kb-kernelbroker"
        )
        assert config["data"]["broker.toml"].strip() == "[pool]\nmin_size = 1"

    def test_uninstalled(self, installed: Installed) -> None:
        """What people cannot make again stays: tokens, and the namespace with claims of projects."""
        installed.helm("uninstall")
        assert not installed.get("statefulsets")
        assert [s["metadata"]["name"] for s in installed.get("secrets")] == ["kb-kernelbroker"]
        assert installed.kubectl("get", "namespace", "kb-kernelbroker-sandboxes", "--output=name")
        installed.upgrade()  # and it can be installed again
        assert len(installed.get("statefulsets")) == 1
