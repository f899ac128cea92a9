"""The autoscaler as a Kubernetes manifest: HorizontalPodAutoscaler, autoscaling/v2."""

from __future__ import annotations

import re
from typing import Any

from perfmodel.errors import SpecError
from perfmodel.plan.capacity import Policy

__all__ = ["hpa_manifest", "kubernetes_quantity"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.-]*")


def kubernetes_quantity(value: float) -> str:
    """Return a number as a Kubernetes quantity in thousandths, rounded down so that a target stays on the safe side.

    >>> kubernetes_quantity(2.1567), kubernetes_quantity(3.0)
    ('2156m', '3')
    """
    thousandths = int(value * 1000.0 + 1e-9)
    if thousandths < 1:
        raise SpecError("the target is too small for a manifest", got=f"{value:g}", expected="at least 0.001")
    return f"{thousandths // 1000}" if thousandths % 1000 == 0 else f"{thousandths}m"


def hpa_manifest(policy: Policy, *, name: str, metric: str = "requests_per_second") -> dict[str, Any]:
    """Return the manifest of the policy for a Deployment of that name; raises SpecError for names Kubernetes refuses.

    The metric is one of pods, requests per second of each, as an adapter of custom metrics serves it.
    Source: Kubernetes API reference, autoscaling/v2.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(
            "the deployment cannot have this name",
            got=repr(name),
            expected="small letters, digits and dashes, at most 63",
        )
    if not _METRIC.fullmatch(metric):
        raise SpecError("the metric cannot have this name", got=repr(metric), expected="letters, digits, _ and :")
    value = kubernetes_quantity(policy.target_requests_per_s)
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": policy.min_replicas,
            "maxReplicas": policy.max_replicas,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": metric},
                        "target": {"type": "AverageValue", "averageValue": value},
                    },
                }
            ],
            "behavior": {
                "scaleUp": {
                    "stabilizationWindowSeconds": round(policy.up_window_s),
                    "selectPolicy": "Max",
                    "policies": [
                        {"type": "Percent", "value": 100, "periodSeconds": 15},
                        {"type": "Pods", "value": 4, "periodSeconds": 15},
                    ],
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": round(policy.down_window_s),
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
                },
            },
        },
    }
