"""Does a version fit the live parts? Every difference is found before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from checkpoint.capture import Walked
from checkpoint.errors import WrongState
from checkpoint.store import no_part
from checkpoint.strict import JSON
from checkpoint.tensors import TensorSpec
from checkpoint.tree import Part
from checkpoint.version import Manifest

_OPTIMIZER_STATE = re.compile(r"state/([0-9]{1,9})/[^/]+")


def check_fit(version: int, manifest: Manifest, parts: Mapping[str, Part], live: Walked) -> None:
    """Raises WrongState, with every difference, unless the version's parts fit the live ones."""
    found: list[str] = []
    for name, part in parts.items():
        if name not in manifest.tree:
            found.append(no_part(version, manifest, name))
            continue
        stored = {
            path.removeprefix(f"{name}/"): manifest.tensors[index].spec
            for path, index in manifest.leaves(name).items()
        }
        own: Callable[[Mapping[str, TensorSpec]], Sequence[str]] | None = getattr(part, "differences", None)
        if own is not None:
            found += [f"{name}: {difference}" for difference in own(stored)]
        else:
            here = {
                path.removeprefix(f"{name}/"): live.specs[index]
                for path, index in live.by_name.items()
                if path.startswith(f"{name}/")
            }
            found += _differences(version, name, part, stored, here, manifest.tree[name], live.tree[name])
    found += _wrongly_tied(version, manifest, parts, live)
    if found:
        raise WrongState(version, found)


def _differences(
    version: int,
    name: str,
    part: Part,
    stored: Mapping[str, TensorSpec],
    here: Mapping[str, TensorSpec],
    stored_tree: JSON,
    live_tree: JSON,
) -> list[str]:
    import torch

    if isinstance(part, torch.optim.Optimizer):
        return _optimizer_differences(version, name, part, stored, stored_tree, live_tree)
    found = [
        f"{name}/{path}: {spec} in version {version}, {here[path]} here"
        if path in here
        else f"{name}/{path}: {spec} in version {version}, missing here"
        for path, spec in stored.items()
        if here.get(path) != spec
    ]
    found += [
        f"{name}/{path}: {spec} here, missing in version {version}"
        for path, spec in here.items()
        if path not in stored
    ]
    return found


def _optimizer_differences(
    version: int,
    name: str,
    part: object,
    stored: Mapping[str, TensorSpec],
    stored_tree: JSON,
    live_tree: JSON,
) -> list[str]:
    """A torch optimizer makes its state in its first step, so stored state is held against the parameters."""
    import torch

    assert isinstance(part, torch.optim.Optimizer)
    ours, theirs = _group_sizes(live_tree), _group_sizes(stored_tree)
    if ours != theirs:
        return [f"{name}: parameter groups of {theirs} parameters in version {version}, of {ours} here"]
    parameters = [parameter for group in part.param_groups for parameter in group["params"]]
    found: list[str] = []
    for path, spec in stored.items():
        match = _OPTIMIZER_STATE.fullmatch(path)
        index = int(match[1]) if match else -1
        if 0 <= index < len(parameters) and spec.shape not in ((), (1,), tuple(parameters[index].shape)):
            shape = list(parameters[index].shape)
            found.append(
                f"{name}/{path}: {spec} in version {version}, parameter {index} has the shape {shape} here"
            )
    return found


def _group_sizes(tree: JSON) -> list[int]:
    groups = tree.get("param_groups") if isinstance(tree, Mapping) else None
    sizes: list[int] = []
    for group in groups if isinstance(groups, list) else []:
        parameters = group.get("params") if isinstance(group, Mapping) else None
        sizes.append(len(parameters) if isinstance(parameters, list) else 0)
    return sizes


def _wrongly_tied(version: int, manifest: Manifest, parts: Mapping[str, Part], live: Walked) -> list[str]:
    """Tensors that are one here and two, with different contents, in the version: one would overwrite the other."""
    first: dict[int, tuple[str, int]] = {}
    found: list[str] = []
    for part in parts:
        if part not in manifest.tree:
            continue
        for name, stored in manifest.leaves(part).items():
            here = live.by_name.get(name)
            if here is None:
                continue
            other, other_stored = first.setdefault(here, (name, stored))
            if manifest.tensors[stored].roots != manifest.tensors[other_stored].roots:
                found.append(f"{name}: tied to {other} here, apart from it in version {version}")
    return found
