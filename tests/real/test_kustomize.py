"""Every kustomization of `deploy/`, built by the kustomize of each kubectl that users may have.

kubectl contains kustomize: 1.27 has 5.0.1, 1.31 has 5.4.2, 1.32 has 5.5.0, 1.33 has 5.6.0. The newest is that of the
kubectl of `make controlplane`, whose answer the others must equal.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.rendering import DEPLOY, kustomized

FOLDERS = sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))
VERSIONS = sorted(path.stem for path in (Path(__file__).parent / "tools" / "kustomize").glob("*.mod"))


def test_least_kubectl_in_documentation_has_oldest_kustomize() -> None:
    assert VERSIONS == ["5.0.1", "5.4.2", "5.5.0", "5.6.0"]
    assert "kubectl 1.27 or newer" in (DEPLOY.parent / "docs" / "operators.md").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(DEPLOY).as_posix())
@pytest.mark.parametrize("version", VERSIONS)
def test_kustomize_versions_build_equal_objects(version: str, folder: Path) -> None:
    objects = kustomized(folder)
    assert objects
    assert by_name(kustomized(folder, version)) == by_name(objects)


def by_name(objects: list[dict[str, object]]) -> dict[tuple[str, str, str], dict[str, object]]:
    """Versions order objects differently, which changes nothing for `kubectl apply`."""
    found = {}
    for one in objects:
        metadata = one["metadata"]
        assert isinstance(metadata, dict)
        found[str(one["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])] = one
    assert len(found) == len(objects)
    return found
