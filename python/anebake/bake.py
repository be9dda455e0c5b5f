"""What the program calls to get packages: a template without coremltools' passes, a part by coremltools' own road."""

import contextlib
import gc
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy.typing as npt
from coremltools.converters.mil.mil import Program
from coremltools.proto import Model_pb2

from anebake import graph, package
from anebake.layers import Weight
from anebake.request import Refused, Request, Scheme, const_name
from anebake.weights import check_stampable, probe, quantize, rows_of

PACKAGE = "package.mlpackage"
"""What both roads call the package in their folder; coremltools opens no other extension."""


def template(request_json: str, folder: Path) -> str:
    """Authors and converts one part filled with probe values.

    Writes `package.mlpackage`, normalised, and `probe/*.bin`: the unquantized values, little-endian, float16 for
    float16 compute, else float32, row-major in checkpoint shape. Returns JSON: `tensors` (role, const, scheme or null,
    and `probe`: the file and the offset in it at which the values begin) and `statics` (consts of weight.bin that are
    no weights). `Refused` where a tensor or its scales would not lie in weight.bin.
    """
    request = Request.from_json(request_json)
    part = graph.part(request)
    shapes, windows = part.tensors(), part.windows()
    _check_roles(request, shapes)
    check_stampable(shapes, request.weights)
    (folder / "probe").mkdir(parents=True)
    weights, places = _probes(request, shapes, windows, folder / "probe")
    program, shared = graph.program(request, weights)
    del weights
    with _temporary_files_in(folder):
        to_package(program, request, ct.PassPipeline.EMPTY, folder / PACKAGE)
    package.normalise(folder / PACKAGE)
    # A program is full of cycles that hold its weights.
    del program
    gc.collect()
    stored = {const_name(role) for role in shapes}
    return json.dumps(
        {
            "tensors": [
                {
                    "role": role,
                    "const": const_name(role),
                    "scheme": _scheme(request.weights.get(role)),
                    "probe": places[role],
                }
                for role in shapes
            ],
            "statics": sorted(name for name in shared if name.removesuffix("_quantized") not in stored),
        }
    )


def _probes(
    request: Request, shapes: Mapping[str, tuple[int, ...]], windows: Mapping[str, tuple[str, int]], folder: Path
) -> tuple[Mapping[str, Weight], Mapping[str, Mapping[str, Any]]]:
    """Probe values of every tensor, quantized where the request says so, and where in `folder` they are written."""
    members: dict[str, dict[str, int]] = {}
    for role in shapes:
        name, first = windows.get(role, (role, 0))
        members.setdefault(name, {})[role] = first
    weights: dict[str, Weight] = {}
    places: dict[str, Mapping[str, Any]] = {}
    for name, roles in members.items():
        (columns,) = {shapes[role][1:] for role in roles}
        (scheme,) = {request.weights.get(role) for role in roles}
        rows = max(first + shapes[role][0] for role, first in roles.items())
        values = probe(name, (rows, *columns), request.compute)
        values.tofile(folder / f"{name}.bin")
        stride = values.strides[0]
        whole = values if scheme is None else quantize(values, scheme, name)
        del values
        for role, first in roles.items():
            weights[role] = rows_of(whole, first, shapes[role][0])
            places[role] = {"file": f"{name}.bin", "offset": first * stride}
    return weights, places


def convert(request_json: str, tensors: Mapping[str, npt.NDArray[Any]], folder: Path) -> None:
    """Bakes one part as a user of coremltools does: each function converted from float weights with the default
    passes, quantized by `linear_quantize_weights`, the functions joined by `save_multifunction`.

    `tensors` are float32 or float16 by role, in checkpoint shape. Writes `package.mlpackage` into `folder`,
    normalised. `Refused` where coremltools leaves a tensor unquantized that the request wants quantized.
    """
    request = Request.from_json(request_json)
    shapes = graph.part(request).tensors()
    _check_roles(request, shapes)
    weights: dict[str, Weight] = {}
    for role, shape in shapes.items():
        if role not in tensors:
            raise ValueError(f"tensor `{role}` is missing")
        if tensors[role].shape != shape:
            raise ValueError(f"tensor `{role}` has shape {list(tensors[role].shape)}, not {list(shape)}")
        weights[role] = tensors[role].astype(request.compute)
    folder.mkdir(parents=True, exist_ok=True)
    with _temporary_files_in(folder), tempfile.TemporaryDirectory() as temporary:
        joined = ct.utils.MultiFunctionDescriptor()
        for name, rows in request.functions.items():
            program = Program()
            program.add_function("main", graph.function(request, weights, rows)[0])
            model = to_package(program, request, ct.PassPipeline.DEFAULT, None)
            model = _quantize(model, request)
            path = str(Path(temporary) / f"{name}.mlpackage")
            model.save(path)
            del model, program
            joined.add_function(path, "main", name)
        joined.default_function_name = request.default_function
        ct.utils.save_multifunction(joined, str(folder / PACKAGE))
    package.normalise(folder / PACKAGE)
    _check_quantized(folder / PACKAGE, request)
    del weights, joined
    gc.collect()


def to_package(program: Any, request: Request, passes: Any, path: Path | None) -> Any:
    """`ct.convert` of a MIL program; the package goes to `path` or to a temporary place."""
    precision = ct.precision.FLOAT16 if request.compute_precision == "float16" else ct.precision.FLOAT32
    return ct.convert(
        program,
        source="milinternal",
        convert_to="mlprogram",
        minimum_deployment_target=ct.target[request.target],
        compute_precision=precision,
        compute_units=ct.ComputeUnit.CPU_AND_NE,
        pass_pipeline=passes,
        skip_model_load=True,
        package_dir=None if path is None else str(path),
    )


def _quantize(model: Any, request: Request) -> Any:
    """`linear_quantize_weights` on the projections that the request names, selected by the name of their conv op."""
    if not request.weights:
        return model
    configs = {
        role.split(".")[-2]: cto.OpLinearQuantizerConfig(
            mode="linear_symmetric",
            dtype=scheme.dtype,
            granularity=scheme.granularity,
            block_size=scheme.block_size or 32,
            weight_threshold=0,
        )
        for role, scheme in request.weights.items()
    }
    config = cto.OptimizationConfig(op_name_configs=configs)
    return cto.linear_quantize_weights(model, config=config)


def _check_quantized(path: Path, request: Request) -> None:
    spec = Model_pb2.Model()
    spec.ParseFromString(package.model_path(path).read_bytes())
    plain = {
        op.outputs[0].name
        for function in spec.mlProgram.functions.values()
        for block in function.block_specializations.values()
        for op in block.operations
        if op.type == "const"
    }
    for role, scheme in request.weights.items():
        if const_name(role) in plain:
            raise Refused(f"tensor `{role}`: coremltools did not quantize it ({scheme.dtype}, {scheme.granularity})")


def _check_roles(request: Request, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for role in request.weights:
        if len(shapes.get(role, ())) != 2:
            raise ValueError(f"`{role}` is no projection of this part")


def _scheme(scheme: Scheme | None) -> dict[str, Any] | None:
    return None if scheme is None else asdict(scheme)


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """coremltools' temporary files go into `folder`, onto the file system of the result, and vanish with it."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        tempfile.tempdir = temporary
        try:
            yield
        finally:
            tempfile.tempdir = before
