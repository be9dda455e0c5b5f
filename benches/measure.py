"""Runs one command as a fresh process and says what it took."""

import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


class Failed(Exception):
    """A measured command did not succeed."""


@dataclass
class Run:
    """What one process took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Largest resident set, mapped files included. The kernel counts from the measuring process on, about 15 MB."""
    output: str = field(repr=False)


def run(command: list[str], environment: dict[str, str] | None = None) -> Run:
    """Runs a command to its end; dirty pages of earlier ones are on disk before."""
    program = shutil.which(command[0]) or command[0]
    os.sync()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, err.fileno(), 2)]
        variables = {**os.environ, "CI": "1", **(environment or {})}
        begin = time.perf_counter()
        child = os.posix_spawn(program, command, variables, file_actions=actions)
        _, status, usage = os.wait4(child, 0)
        seconds = time.perf_counter() - begin
        out.seek(0)
        err.seek(0)
        if os.waitstatus_to_exitcode(status) != 0:
            code = os.waitstatus_to_exitcode(status)
            raise Failed(f"`{' '.join(command)}` ended with status {code}\n{err.read().decode(errors='replace')}")
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Run(seconds, usage.ru_utime + usage.ru_stime, peak, out.read().decode(errors="replace"))


@dataclass
class Row:
    """One line of the table: the runs of one road."""

    name: str
    what: str
    source_bytes: int = 0
    """What of the checkpoint it reads."""
    runs: list[Run] = field(default_factory=list)
    extrapolated: list[float] = field(default_factory=list)
    """Seconds for the whole model, where the runs did only part of it."""

    @property
    def walls(self) -> list[float]:
        """Seconds of each run, for the whole model."""
        return self.extrapolated or [run.seconds for run in self.runs]

    @property
    def seconds(self) -> float:
        """Their median."""
        return statistics.median(self.walls)

    @property
    def cpu_seconds(self) -> float:
        """Median of user and system time of the runs, not extrapolated."""
        return statistics.median(run.cpu_seconds for run in self.runs)

    @property
    def peak_bytes(self) -> int:
        """The largest peak of any run."""
        return max(run.peak_bytes for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        runs = [{key: value for key, value in asdict(run).items() if key != "output"} for run in self.runs]
        summary = {"median": self.seconds, "min": min(self.walls), "max": max(self.walls)}
        return {
            "name": self.name,
            "what": self.what,
            "seconds": summary,
            "cpu_seconds": self.cpu_seconds,
            "peak_bytes": self.peak_bytes,
            "source_bytes": self.source_bytes,
            "extrapolated": bool(self.extrapolated),
            "runs": runs,
        }


def remove(*paths: Path) -> None:
    """Removes files and folders, read-only ones too."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
