"""Ready-made queries for common exporters: cAdvisor, node-exporter and log collectors.

`$window` is replaced by the time range of a sample (`Dimension.promql`). Queries per pod return series with the labels
`namespace` and `pod`, queries per node with the node's name.

Sources of metric names and labels:

- the kubelet's cAdvisor: google/cadvisor 0.56.2, metrics/prometheus.go (names; `cpu`, `device`, `interface`). Labels
  are those of kubernetes 1.36.3, pkg/kubelet/server/server.go: `namespace`, `pod`, `container`, and an `id` per
  container. A pod's cgroup and its sandbox have an empty `container` (older runtimes: "POD"); network is measured for
  the sandbox only. A restarted container has two series for a while;
- node-exporter 1.5.0 from Debian, observed output: `node_uname_info{nodename}`, and the `instance` of the scrape. It
  excludes partitions by default (collector.diskstats.device-exclude), but not stacked devices and links;
- kube-state-metrics 2: docs/metrics/workload/pod-metrics.md, internal/store/{job,replicaset}.go. A pod can have several
  owners, one of which is its controller. Without an owner the labels are empty (before 2.0 "<none>");
- promtail (grafana/loki, clients/pkg/promtail/targets/file/metrics.go) and Alloy (grafana/alloy,
  internal/component/loki/source/file/metrics.go): bytes read by `path`. It is a gauge that falls back to zero when the
  file is rotated, as a counter does. The kubelet names the files /var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log;
- vector (src/internal_events/kubernetes_logs.rs): `pod_name` and `pod_namespace`; bytes are an estimate for the event as
  JSON; `vector_` is the default namespace of its source internal_metrics;
- fluent-bit (src/flb_input.c): `name` of the input and no label for the pod, so only the bytes of a whole node are known;
- Loki (pkg/loghttp/params.go): accepts times and steps in seconds, like Prometheus, below /loki/api/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

WINDOW: Final = "$window"


class Per(Enum):
    """Whether a query measures pods or nodes; the values are those of the configuration."""

    POD = "pod"
    NODE = "node"


class ReadyQuery(msgspec.Struct, frozen=True):
    """A ready-made query."""

    query: str
    per: Per
    unit: str
    needs: str
    """The exporter or component that Prometheus must scrape for the query."""


_CONTAINERS: Final = 'container!="",container!="POD"'
_LINKS: Final = (
    'device!~"lo|veth.*|cali.*|cni.*|flannel.*|docker.*|br-.*|tunl.*|vxlan.*|kube-.*|lxc.*|cilium.*|eni[0-9a-f]+|gke.*|azv.*'
    "|antrea.*|genev.*|ovs-.*|tap.*|virbr.*|dummy.*|ifb.*|nodelocaldns|wg.*|gre.*|erspan.*|ip6tnl.*|sit.*|bond.*|team.*"
    r'|.+[.@].+"'
)
"""Excludes links of pods, tunnels, bonds and VLANs, whose traffic is also counted at the physical device."""
_DISKS: Final = 'device!~"dm-.*|drbd.*|loop.*|md.*|ram.*|sr.*|zram.*"'
_BY_NODE: Final = "* on (instance) group_left (nodename) max by (instance, nodename) (node_uname_info)"


_CLOSED_BY: Final = {"(": ")", "[": "]", "{": "}"}


def _per_pod(expression: str) -> str:
    return f"sum by (namespace, pod) ({expression})"


def _per_node(expression: str) -> str:
    """Aggregates by host name, which is the node's name unless the kubelet overrides it (--hostname-override)."""
    return f"sum by (nodename) ((sum by (instance) ({expression})) {_BY_NODE})"


def _relabelled(expression: str, namespace: tuple[str, str], pod: tuple[str, str]) -> str:
    """Sets namespace and pod from (label, pattern), because the labels of the series name the collector's own pod."""
    for target, (source, pattern) in (("namespace", namespace), ("pod", pod)):
        expression = f'label_replace({expression}, "{target}", "$1", "{source}", "{pattern}")'
    return _per_pod(expression)


READY: Final[Mapping[str, ReadyQuery]] = {
    "cadvisor-cpu": ReadyQuery(
        _per_pod(f"rate(container_cpu_usage_seconds_total{{{_CONTAINERS}}}[{WINDOW}])"),
        Per.POD,
        "cores",
        "cAdvisor (kubelet)",
    ),
    "cadvisor-memory": ReadyQuery(
        # max: a container restarted within the window has two series for the same memory.
        _per_pod(
            "max by (namespace, pod, container)"
            f" (avg_over_time(container_memory_working_set_bytes{{{_CONTAINERS}}}[{WINDOW}]))"
        ),
        Per.POD,
        "bytes",
        "cAdvisor (kubelet)",
    ),
    "cadvisor-network": ReadyQuery(
        " + ".join(
            _per_pod(f'rate(container_network_{way}_bytes_total{{pod!="",interface!="lo"}}[{WINDOW}])')
            for way in ("receive", "transmit")
        ),
        Per.POD,
        "bytes/s",
        "cAdvisor (kubelet); a pod in the host's network shows the whole node's traffic",
    ),
    "cadvisor-disk": ReadyQuery(
        " + ".join(
            _per_pod(f"rate(container_fs_{way}_bytes_total{{{_CONTAINERS}}}[{WINDOW}])") for way in ("reads", "writes")
        ),
        Per.POD,
        "bytes/s",
        "cAdvisor (kubelet)",
    ),
    "node-cpu": ReadyQuery(
        _per_node(f'rate(node_cpu_seconds_total{{mode!~"idle|iowait|steal"}}[{WINDOW}])'),
        Per.NODE,
        "cores",
        "node-exporter",
    ),
    "node-memory": ReadyQuery(
        _per_node(
            f"avg_over_time(node_memory_MemTotal_bytes[{WINDOW}]) - avg_over_time(node_memory_MemAvailable_bytes[{WINDOW}])"
        ),
        Per.NODE,
        "bytes",
        "node-exporter",
    ),
    "node-network": ReadyQuery(
        _per_node(
            f"rate(node_network_receive_bytes_total{{{_LINKS}}}[{WINDOW}])"
            f" + rate(node_network_transmit_bytes_total{{{_LINKS}}}[{WINDOW}])"
        ),
        Per.NODE,
        "bytes/s",
        "node-exporter",
    ),
    "node-disk": ReadyQuery(
        _per_node(
            f"rate(node_disk_read_bytes_total{{{_DISKS}}}[{WINDOW}]) + rate(node_disk_written_bytes_total{{{_DISKS}}}[{WINDOW}])"
        ),
        Per.NODE,
        "bytes/s",
        "node-exporter",
    ),
    "loki-log": ReadyQuery(
        _per_pod(f'bytes_rate({{namespace=~".+",pod=~".+"}}[{WINDOW}])'),
        Per.POD,
        "bytes/s",
        "Loki itself as the server: url http://loki:3100/loki, with the labels namespace and pod on its streams",
    ),
    "promtail-log": ReadyQuery(
        _relabelled(
            f'rate(promtail_read_bytes_total{{path=~"/var/log/pods/.+"}}[{WINDOW}])',
            ("path", "/var/log/pods/([^_]+)_.*"),
            ("path", "/var/log/pods/[^_]+_([^_]+)_.*"),
        ),
        Per.POD,
        "bytes/s",
        "promtail",
    ),
    "alloy-log": ReadyQuery(
        _relabelled(
            f'rate(loki_source_file_read_bytes_total{{path=~"/var/log/pods/.+"}}[{WINDOW}])',
            ("path", "/var/log/pods/([^_]+)_.*"),
            ("path", "/var/log/pods/[^_]+_([^_]+)_.*"),
        ),
        Per.POD,
        "bytes/s",
        "Grafana Alloy, component loki.source.file",
    ),
    "vector-log": ReadyQuery(
        _relabelled(
            f'rate(vector_component_received_event_bytes_total{{component_type="kubernetes_logs",pod_name!=""}}[{WINDOW}])',
            ("pod_namespace", "(.+)"),
            ("pod_name", "(.+)"),
        ),
        Per.POD,
        "bytes/s",
        "vector, source kubernetes_logs, with the sources internal_metrics scraped",
    ),
    "fluent-bit-log": ReadyQuery(
        f"sum by (node) (sum by (namespace, pod) (rate(fluentbit_input_bytes_total[{WINDOW}]))"
        " * on (namespace, pod) group_left (node) max by (namespace, pod, node) (kube_pod_info))",
        Per.NODE,
        "bytes/s",
        "fluent-bit, which counts per input and not per pod; and kube-state-metrics",
    ),
}
"""Ready-made queries by the value of `ready`."""


def unbalanced(query: str) -> str:
    """Describes the first unbalanced bracket or quote of a query; returns "" if there is none.

    PromQL and LogQL can be parsed fully only by their server; this finds the most frequent typing error.
    """
    opened: list[str] = []
    quote = ""
    letters = iter(query)
    for letter in letters:
        if quote:
            if letter == "\\" and quote != "`":
                next(letters, "")
            elif letter == quote:
                quote = ""
        elif letter in "\"'`":
            quote = letter
        elif letter == "#":
            next((letter for letter in letters if letter == "\n"), "")
        elif letter in _CLOSED_BY:
            opened.append(letter)
        elif letter in _CLOSED_BY.values() and (not opened or _CLOSED_BY[opened.pop()] != letter):
            return f"{letter} closes nothing"
    if quote:
        return f"the quote {quote} is not closed"
    return f"{opened[-1]} is not closed" if opened else ""


PLACES: Final = 'max by (namespace, pod, node) (kube_pod_info{node!=""})'
"""kube-state-metrics: the node of each pod, for dimensions measured per node."""


def _owners(metric: str, label: str) -> str:
    by = f"namespace, {label}, owner_kind, owner_name"
    return f'max by ({by}) (max_over_time({metric}{{owner_kind!="",owner_is_controller!="false"}}[{WINDOW}]))'


POD_OWNERS: Final = _owners("kube_pod_owner", "pod")
REPLICASET_OWNERS: Final = _owners("kube_replicaset_owner", "replicaset")
JOB_OWNERS: Final = _owners("kube_job_owner", "job_name")
"""kube-state-metrics: the controllers of all objects that existed in the window, including deleted ones."""


def promql_duration(seconds: float) -> str:
    """Formats a duration as `2419200s` or `1500ms`, because PromQL accepts neither fractions nor exponents."""
    whole_ms = max(round(seconds * 1_000), 1)
    return f"{whole_ms}ms" if whole_ms % 1_000 else f"{whole_ms // 1_000}s"
