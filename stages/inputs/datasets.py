"""Folders as Hugging Face `datasets` saves them: which of their Arrow files are the data.

    dataset_dict.json {"splits": [...]}, a folder a split          state.json {"_data_files": [{"filename": ...}]}

Such a folder may hold `cache-*.arrow` of earlier computations too: what is no data file is not read.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from stages.errors import InputError

_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"


def data_names(folder: Path, names: Collection[str], label: str) -> list[str] | None:
    """The names that the data of a saved data set has in `folder`, in order; None where it is no such folder.

    Raises InputError: it is damaged, or holds several splits, which are not meant to be read as one.
    """
    if _SPLITS in names:
        splits = _load(folder / _SPLITS, label).get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise InputError(f"{label}/{_SPLITS}: expected the names of splits, found {splits!r}")
        if len(splits) > 1:
            raise InputError(
                f"{label}: holds the splits {', '.join(splits)}; name the one to read, such as {label}/{splits[0]}"
            )
        return [name for name in splits if name in names]
    if _STATE not in names or _INFO not in names:
        return None
    files = _load(folder / _STATE, label).get("_data_files")
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise InputError(f"{label}/{_STATE}: expected _data_files, found {files!r}")
    found = [str(file.get("filename")) for file in files]
    for name in found:
        if name not in names:
            raise InputError(f"{label}: lacks {name}, which its {_STATE} names; save the data set again")
    return found


def _load(path: Path, label: str) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{label}/{path.name}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{label}/{path.name}: is no JSON: {error}; save the data set again") from error
    if not isinstance(found, dict):
        raise InputError(f"{label}/{path.name}: expected an object; save the data set again")
    return found
