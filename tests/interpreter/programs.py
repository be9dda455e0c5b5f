"""Five programs as other tools make them, through coremltools' default passes. Argument: the folder to write to.

What they should give is computed from the authored program, before the passes, or by plain numpy for the programs whose
weights coremltools compresses and whose states it keeps.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from authoring import Output, mb, program, types

Array = np.ndarray
RANDOM = np.random.default_rng(11)


def normal(*shape: int, scale: float = 1.0) -> Array:
    """float16 values in float64."""
    return (RANDOM.standard_normal(shape) * scale).astype(np.float16).astype(np.float64)


def softmax(x: Array, axis: int = -1) -> Array:
    """In float64."""
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _erf(x: Array) -> Array:
    from math import erf

    return np.vectorize(erf)(x)


# A small CNN: convolution, batch norm, ReLU, max pool, strided depthwise convolution, global average, linear, softmax.

CNN = {
    "conv1": normal(8, 3, 3, 3, scale=0.2),
    "bias1": normal(8, scale=0.1),
    "mean": normal(8, scale=0.1),
    "variance": np.abs(normal(8)) + 0.5,
    "gamma": normal(8, scale=0.5) + 1,
    "beta": normal(8, scale=0.1),
    "conv2": normal(8, 1, 3, 3, scale=0.4),
    "conv3": normal(16, 8, 1, 1, scale=0.4),
    "linear": normal(10, 16, scale=0.3),
    "bias": normal(10, scale=0.1),
}
CNN = {name: value.astype(np.float16).astype(np.float64) for name, value in CNN.items()}


def cnn(f: Any, image: Any) -> Any:
    """As a converter writes it."""
    w = {name: f(value) for name, value in CNN.items()}
    x = mb.conv(x=image, weight=w["conv1"], bias=w["bias1"], pad_type="same")
    x = mb.batch_norm(x=x, mean=w["mean"], variance=w["variance"], gamma=w["gamma"], beta=w["beta"], epsilon=f(1e-3))
    x = mb.relu(x=x)
    x = mb.max_pool(x=x, kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid")
    x = mb.conv(x=x, weight=w["conv2"], groups=8, strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1])
    x = mb.relu6(x=mb.conv(x=x, weight=w["conv3"]))
    x = mb.reduce_mean(x=x, axes=[2, 3], keep_dims=False)
    return mb.softmax(x=mb.linear(x=x, weight=w["linear"], bias=w["bias"]), axis=-1, name="probabilities")


def convolve(x: Array, weight: Array, pad: int, stride: int, groups: int = 1) -> Array:
    """One image, square kernel."""
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    size, out = weight.shape[2], (x.shape[2] - weight.shape[2]) // stride + 1
    result = np.zeros((1, weight.shape[0], out, out))
    per_group, outs = weight.shape[1], weight.shape[0] // groups
    for channel in range(weight.shape[0]):
        first = channel // outs * per_group
        for i in range(out):
            for j in range(out):
                part = x[0, first : first + per_group, i * stride : i * stride + size, j * stride : j * stride + size]
                result[0, channel, i, j] = (part * weight[channel]).sum()
    return result


def cnn_numpy(image: Array) -> Array:
    """The same in plain numpy."""
    w = CNN
    along = lambda v: v.reshape(1, -1, 1, 1)  # noqa: E731
    x = convolve(image, w["conv1"], 1, 1) + along(w["bias1"])
    x = (x - along(w["mean"])) / np.sqrt(along(w["variance"]) + 1e-3) * along(w["gamma"]) + along(w["beta"])
    x = np.maximum(x, 0)
    x = x.reshape(1, 8, 8, 2, 8, 2).max((3, 5))
    x = convolve(x, w["conv2"], 1, 2, 8)
    x = np.clip(convolve(x, w["conv3"], 0, 1), 0, 6).mean((2, 3))
    return softmax(x @ w["linear"].T + w["bias"])


# An encoder layer, written out, and with the fused attention op.

TOKENS, WIDTH, HEADS = 6, 16, 2
ENCODER = {name: normal(WIDTH, WIDTH, scale=0.25) for name in ("q", "k", "v", "o")}
ENCODER |= {"up": normal(4 * WIDTH, WIDTH, scale=0.25), "down": normal(WIDTH, 4 * WIDTH, scale=0.15)}
ENCODER |= {f"{name}_bias": normal(len(ENCODER[name]), scale=0.1) for name in ("q", "k", "v", "o", "up", "down")}
ENCODER |= {"gain1": normal(WIDTH, scale=0.2), "shift1": normal(WIDTH), "gain2": normal(WIDTH), "shift2": normal(WIDTH)}


def encoder(f: Any, x: Any, mask: Any, fused: bool) -> Any:
    """Post-norm, GELU."""
    w = {name: f(value) for name, value in ENCODER.items()}

    def heads(name: str) -> Any:
        y = mb.linear(x=x, weight=w[name], bias=w[f"{name}_bias"])
        y = mb.reshape(x=y, shape=[1, TOKENS, HEADS, WIDTH // HEADS])
        return mb.transpose(x=y, perm=[0, 2, 1, 3])

    q, k, v = heads("q"), heads("k"), heads("v")
    if fused:
        mixed = mb.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask)
    else:
        scores = mb.mul(x=mb.matmul(x=q, y=k, transpose_y=True), y=f((WIDTH // HEADS) ** -0.5))
        mixed = mb.matmul(x=mb.softmax(x=mb.add(x=scores, y=mask), axis=-1), y=v)
    mixed = mb.reshape(x=mb.transpose(x=mixed, perm=[0, 2, 1, 3]), shape=[1, TOKENS, WIDTH])
    mixed = mb.linear(x=mixed, weight=w["o"], bias=w["o_bias"])
    y = mb.layer_norm(x=mb.add(x=x, y=mixed), axes=[-1], gamma=w["gain1"], beta=w["shift1"], epsilon=f(1e-3))
    hidden = mb.gelu(x=mb.linear(x=y, weight=w["up"], bias=w["up_bias"]), mode="EXACT")
    hidden = mb.linear(x=hidden, weight=w["down"], bias=w["down_bias"])
    return mb.layer_norm(
        x=mb.add(x=y, y=hidden), axes=[-1], gamma=w["gain2"], beta=w["shift2"], epsilon=f(1e-3), name="encoded"
    )


def encoder_numpy(x: Array, mask: Array) -> Array:
    """The same in plain numpy."""
    w = ENCODER

    def norm(x: Array, gain: Array, shift: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * gain + shift

    heads = lambda n: (x @ w[n].T + w[f"{n}_bias"]).reshape(TOKENS, HEADS, -1).transpose(1, 0, 2)  # noqa: E731
    q, k, v = heads("q"), heads("k"), heads("v")
    mixed = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH // HEADS) + mask) @ v
    mixed = mixed.transpose(1, 0, 2).reshape(1, TOKENS, WIDTH) @ w["o"].T + w["o_bias"]
    y = norm(x + mixed, w["gain1"], w["shift1"])
    hidden = y @ w["up"].T + w["up_bias"]
    hidden = 0.5 * hidden * (1 + _erf(hidden / np.sqrt(2)))
    return norm(y + hidden @ w["down"].T + w["down_bias"], w["gain2"], w["shift2"])


# Linear layers whose weights coremltools palettizes.

STACK = [normal(48, 32, scale=0.2), normal(64, 48, scale=0.2), normal(16, 64, scale=0.2)]


def stack(f: Any, x: Any) -> Any:
    """Three layers."""
    for weight in STACK[:-1]:
        x = mb.silu(x=mb.linear(x=x, weight=f(weight)))
    return mb.linear(x=x, weight=f(STACK[-1]), name="stacked")


def stack_numpy(x: Array, weights: list[Array]) -> Array:
    """The same with the weights that the compressed package holds."""
    for weight in weights[:-1]:
        x = x @ weight.T
        x = x / (1 + np.exp(-x))
    return x @ weights[-1].T


def palettized(model: Any) -> list[Array]:
    """Weights of the linear layers of a compressed model, in program order, from its tables and indices."""
    function = model._mil_program.functions["main"]
    return [
        np.asarray(op.weight.op.materialized_val_inference(), np.float64)
        for op in function.operations
        if op.op_type == "linear"
    ]


# A recurrent cell whose memory is a state: h = tanh(W x + U h + b), and a count of its calls.

CELL = {"w": normal(24, 12, scale=0.4), "u": normal(24, 24, scale=0.3), "b": normal(24, scale=0.2)}


def cell(f: Any) -> Any:
    """States are float16 whatever else is."""
    kind = types.fp16 if f.dtype is np.float16 else types.fp32
    specs = [
        mb.TensorSpec((1, 12), dtype=kind),
        mb.StateTensorSpec((1, 24), dtype=types.fp16),
        mb.StateTensorSpec((1,), dtype=types.fp16),
    ]
    w = {name: f(value) for name, value in CELL.items()}

    @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
    def authored(x: Any, memory: Any, calls: Any) -> Any:
        h = mb.read_state(input=memory)
        if kind is types.fp32:
            h = mb.cast(x=h, dtype="fp32")
        h = mb.tanh(
            x=mb.add(x=mb.linear(x=x, weight=w["w"], bias=w["b"]), y=mb.matmul(x=h, y=w["u"], transpose_y=True)),
            name="hidden",
        )
        narrow = mb.cast(x=h, dtype="fp16") if kind is types.fp32 else h
        mb.coreml_update_state(state=memory, value=narrow)
        count = mb.add(x=mb.read_state(input=calls), y=np.float16(1))
        count = mb.coreml_update_state(state=calls, value=count)
        return h, mb.identity(x=count, name="count")

    return authored


def cell_numpy(xs: list[Array], rounded: bool) -> list[dict[str, Array]]:
    """Several calls."""
    h, outputs = np.zeros((1, 24)), []
    for step, x in enumerate(xs):
        wide = np.tanh(x @ CELL["w"].T + CELL["b"] + h @ CELL["u"].T)
        h = wide.astype(np.float16).astype(np.float64) if rounded else wide
        outputs.append({"hidden": wide, "count": np.array([step + 1.0])})
    return outputs


# A head: embedding rows, projection, the largest logits and their probabilities.

HEAD = {"table": normal(50, 16), "projection": normal(50, 16, scale=0.5)}


def head(f: Any, tokens: Any) -> Any:
    """Mean of the tokens' rows, then top 5."""
    rows = mb.gather(x=f(HEAD["table"]), indices=tokens, axis=0)
    mean = mb.reduce_mean(x=rows, axes=[1])
    logits = mb.linear(x=mean, weight=f(HEAD["projection"]))
    best, where = mb.topk(x=logits, k=5, axis=-1)
    return mb.softmax(x=best, axis=-1, name="shares"), mb.identity(x=where, name="where")


def head_numpy(tokens: Array) -> dict[str, Array]:
    """The same in plain numpy."""
    logits = HEAD["table"][tokens].mean(1) @ HEAD["projection"].T
    where = np.argsort(-logits, axis=-1, kind="stable")[:, :5]
    return {"shares": softmax(np.take_along_axis(logits, where, -1)), "where": where.astype(np.int32)}


def main(folder: Path) -> None:
    """Writes every program in both dtypes."""
    output = Output(folder)

    def add(name: str, dtype: Any, model: Any, calls: Callable[[bool], list[Any]], tolerance: Any) -> None:
        package = f"{name}-{np.dtype(dtype).name}"
        output.keep(package, model)
        by_arithmetic = {"f32": calls(False), "fp16": calls(True)}
        inputs = [call[0] for call in by_arithmetic["f32"]]
        output.case(
            package,
            [
                {"inputs": given, "outputs": {a: rows[step][1] for a, rows in by_arithmetic.items()}}
                for step, given in enumerate(inputs)
            ],
            label=package,
            op="program",
            half=dtype is np.float16,
            tolerance=tolerance,
        )

    for dtype in (np.float16, np.float32):

        def f(value: Any, dtype: Any = dtype) -> Any:
            return np.asarray(value, dtype)[()]

        f.dtype = dtype  # type: ignore[attr-defined]
        # Of every rounding on the way, in float16; of sums in float32.
        tolerance = {"close": 1e-2 if dtype is np.float16 else 1e-5}

        def convert(build: Any, inputs: dict[str, Array], f: Any = f) -> Any:
            authored = build if not inputs else program(lambda **given: build(f, **given), inputs, "iOS18")
            return ct.convert(
                authored,
                convert_to="mlprogram",
                skip_model_load=True,
                minimum_deployment_target=ct.target.macOS15,
                compute_precision=ct.precision.FLOAT32,
            )

        def fixed(inputs: dict[str, Array], outputs: dict[str, Array]) -> Callable[[bool], list[Any]]:
            return lambda _: [(inputs, outputs)]

        image = {"image": normal(1, 3, 16, 16).astype(dtype)}
        expected = {"probabilities": cnn_numpy(image["image"].astype(np.float64))}
        add("cnn", dtype, convert(cnn, image), fixed(image, expected), tolerance)

        mask = np.triu(np.full((TOKENS, TOKENS), -1e4), 1)
        layer = {"x": normal(1, TOKENS, WIDTH).astype(dtype), "mask": mask.astype(dtype)}
        encoded = {"encoded": encoder_numpy(layer["x"].astype(np.float64), layer["mask"].astype(np.float64))}
        for name, fused in (("encoder", False), ("encoder-sdpa", True)):
            build = lambda f, x, mask, fused=fused: encoder(f, x, mask, fused)  # noqa: E731
            add(name, dtype, convert(build, layer), fixed(layer, encoded), tolerance)

        rows = {"x": normal(3, 32).astype(dtype)}
        dense = convert(stack, rows)
        for name, config in (
            ("palettized-4", cto.OpPalettizerConfig(nbits=4, mode="uniform", weight_threshold=0)),
            (
                "palettized-3-grouped",
                cto.OpPalettizerConfig(
                    nbits=3, mode="uniform", weight_threshold=0, granularity="per_grouped_channel", group_size=8
                ),
            ),
        ):
            model = cto.palettize_weights(dense, cto.OptimizationConfig(global_config=config))
            expected = {"stacked": stack_numpy(rows["x"].astype(np.float64), palettized(model))}
            add(name, dtype, model, fixed(rows, expected), tolerance)

        xs = [normal(1, 12) for _ in range(6)]
        add(
            "cell",
            dtype,
            convert(cell(f), {}),
            lambda rounded, xs=xs, dtype=dtype: [
                ({"x": x.astype(dtype)}, outputs) for x, outputs in zip(xs, cell_numpy(xs, rounded), strict=True)
            ],
            tolerance,
        )

        tokens = {"tokens": np.array([[3, 1, 4, 1], [5, 9, 2, 6]], np.int32)}
        add("head", dtype, convert(head, tokens), fixed(tokens, head_numpy(tokens["tokens"])), tolerance)
    output.write()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
