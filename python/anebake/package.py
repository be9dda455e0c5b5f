"""Packages whose bytes depend on their content only."""

import json
import uuid
from pathlib import Path
from typing import Any

import coremltools as ct
from coremltools.proto import Model_pb2

DATE = "com.github.apple.coremltools.conversion_date"


def model_path(package: Path) -> Path:
    """Where a package keeps its spec."""
    return package / "Data" / "com.apple.CoreML" / "model.mlmodel"


def normalise(package: Path) -> None:
    """Rewrites `model.mlmodel` and `Manifest.json` so that equal graphs give equal bytes.

    The conversion date goes, map entries are serialised in order, and the manifest's identifiers are version 5 UUIDs
    of the item paths in the URL namespace. Tool versions stay; `save_multifunction` drops them, they come back.
    """
    spec = Model_pb2.Model()
    spec.ParseFromString(model_path(package).read_bytes())
    _stamp_tools(spec)
    model_path(package).write_bytes(spec.SerializeToString(deterministic=True))

    manifest = json.loads((package / "Manifest.json").read_text())
    entries, root = {}, manifest["rootModelIdentifier"]
    for identifier, item in manifest["itemInfoEntries"].items():
        stable = str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])).upper()
        entries[stable] = item
        if identifier == manifest["rootModelIdentifier"]:
            root = stable
    manifest |= {"itemInfoEntries": entries, "rootModelIdentifier": root}
    (package / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")


def _stamp_tools(spec: Any) -> None:
    """The metadata that `ct.convert` writes, without the date."""
    version, source = ct.__version__, "milinternal"
    user = spec.description.metadata.userDefined
    user.pop(DATE, None)
    user["com.github.apple.coremltools.version"] = version
    user["com.github.apple.coremltools.source"] = source
    info = spec.mlProgram.attributes["buildInfo"]
    if not info.HasField("immediateValue"):
        _build_info(info, {"coremltools-version": version, f"coremltools-component-{source}": ""})


def _build_info(value: Any, entries: dict[str, str]) -> None:
    """A MIL dictionary of strings, as `ct.convert` makes it."""
    from coremltools.converters.mil.backend.mil.helper import create_scalar_value

    example = create_scalar_value("")
    value.type.dictionaryType.keyType.CopyFrom(example.type)
    value.type.dictionaryType.valueType.CopyFrom(example.type)
    for key, text in entries.items():
        pair = value.immediateValue.dictionary.values.add()
        pair.key.CopyFrom(create_scalar_value(key))
        pair.value.CopyFrom(create_scalar_value(text))
