"""Logits of a checkpoint by mlx-lm in float32, one decode step after another: `mlx_logits.py FOLDER TOKEN...` writes
little-endian float32 [tokens, vocab] to stdout.

mlx-lm is installed without what it needs to fetch and tokenize: only its model classes are used, so its package is
entered without running its `__init__`.
"""

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path


def model_classes(model_type: str) -> types.ModuleType:
    """The module of an architecture."""
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("mlx-lm is not installed: make setup-dev")
    package = types.ModuleType("mlx_lm")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["mlx_lm"] = package
    return importlib.import_module(f"mlx_lm.models.{model_type}")


def main() -> None:
    """Loads, runs, writes."""
    import mlx.core as mx

    folder, tokens = Path(sys.argv[1]), [int(token) for token in sys.argv[2:]]
    config = json.loads((folder / "config.json").read_text())
    classes = model_classes(config["model_type"])
    model = classes.Model(classes.ModelArgs.from_dict(config))
    weights = {name: value.astype(mx.float32) for name, value in mx.load(str(folder / "model.safetensors")).items()}
    model.load_weights(list(model.sanitize(weights).items()), strict=True)
    cache_class = importlib.import_module("mlx_lm.models.cache").KVCache
    cache = [cache_class() for _ in model.layers]
    for token in tokens:
        logits = model(mx.array([[token]]), cache=cache)[0, -1].astype(mx.float32)
        sys.stdout.buffer.write(memoryview(logits).tobytes())


if __name__ == "__main__":
    main()
