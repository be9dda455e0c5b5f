"""Type-checks and lints the macOS code, on Linux too: `cargo clippy` for aarch64-apple-darwin.

That target's standard library comes, in this order, from where it already is, from rustup, or from Debian's source
package of exactly this rustc's version (`apt-get download` with a configuration of its own below `target/`; nothing is
installed). Else Debian's compiler for web browsers is unpacked there, which has no clippy and checks types only. On
macOS this is the native check.

Then a Core ML name is misspelt in a copy of the sources, and the check must fail: a check that passes everything proves
nothing.

Exit status: 0 fine, 1 the code has errors, 3 the check cannot be had here. ANEBAKE_SKIP_MACOS_CHECK=1 skips it, aloud.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "aarch64-apple-darwin"
# Its own: the host's build would run build scripts anew each time the environment below changes.
ARTIFACTS = ROOT / "target" / "macos"
TOOLS = ROOT / "target" / "macos-tools"
SKIP = "ANEBAKE_SKIP_MACOS_CHECK"

# Where Debian keeps source packages of several compiler versions at a time, and its compiler for browsers.
SOURCE_SUITES = ["trixie-backports", "trixie", "sid"]
BROWSER_SUITES = ["bookworm", "bookworm-security"]

# What cargo reads of the sources.
COPIED = [
    "Cargo.toml",
    "Cargo.lock",
    "build.rs",
    "clippy.toml",
    "src",
    "python",
    "recipes",
    "schemas",
    "benches",
    "README.md",
]
# In one place there is a name of Core ML's, in another not.
PLANTED_IN = "src/runner/coreml/framework/mod.rs"
NAME, MISSPELT = "MLComputeUnits::CPUAndNeuralEngine", "MLComputeUnits::CPUAndNeuralEngin"

COMPILER = """#!/bin/sh
# Makes an empty file of what a C compiler would make: a check links nothing.
while [ $# -gt 0 ]; do
  case "$1" in
    -o) : > "$2"; shift ;;
    -o*) : > "${1#-o}" ;;
  esac
  shift
done
"""


class Unavailable(Exception):
    """A way to the check that cannot be had here."""


@dataclass
class Way:
    """How cargo checks for the target."""

    name: str
    cargo: list[str] = field(default_factory=lambda: ["cargo"])
    subcommand: str = "clippy"
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """The command line."""
        lints = ["--", "-D", "warnings"] if self.subcommand == "clippy" else []
        target = [] if platform.system() == "Darwin" else ["--target", TARGET]
        return [*self.cargo, self.subcommand, *self.options, *target, "--target-dir", str(ARTIFACTS), *lints]


def output(*command: str, folder: Path | None = None) -> str:
    """What a command prints.

    Raises:
        Unavailable: The command is missing or fails.
    """
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"{command[0]}: {last}")
    return done.stdout


def rustc_version() -> str:
    """For instance `1.95.0`."""
    return output("rustc", "--version").split()[1].split("-")[0]


def has_target() -> bool:
    """Whether the compiler in use has the target's standard library."""
    folder = Path(output("rustc", "--print", "sysroot").strip()) / "lib" / "rustlib" / TARGET / "lib"
    return any(folder.glob("libstd-*.rlib"))


def by_rustup() -> Way:
    """The target as rustup installs it.

    Raises:
        Unavailable: There is no rustup, or it cannot install.
    """
    if not has_target():
        output("rustup", "target", "add", TARGET)
        if not has_target():
            raise Unavailable("rustup: it is not rustup's compiler that is in use")
    return Way("the target's own standard library")


class Apt:
    """apt with lists and configuration of its own; the mirrors are those of the machine's own sources."""

    def __init__(self, suites: list[str]) -> None:
        """Fetches the lists of `suites`, those that the mirrors have.

        Raises:
            Unavailable: This is no Debian, or no mirror has any of them.
        """
        folder = TOOLS / "apt" / suites[0]
        (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        sources = folder / "sources.list"
        self.options = [
            *("-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null"),
            *("-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"),
            *("-o", "APT::Sandbox::User=root"),
        ]
        mirrors = sorted(set(re.findall(r"https?://\S+/debian(?:-security)?/?(?=\s|$)", "\n".join(self.configured()))))
        if not mirrors:
            raise Unavailable("apt: its sources name no mirror of Debian")
        security = [mirror for mirror in mirrors if "debian-security" in mirror]
        archive = [mirror for mirror in mirrors if "debian-security" not in mirror]
        lines = [
            f"deb {mirror} {suite} main"
            for suite in suites
            for mirror in (security if suite.endswith("-security") else archive)
        ]
        sources.write_text("\n".join(lines) + "\n")
        output("apt-get", *self.options, "update")

    @staticmethod
    def configured() -> Iterator[str]:
        """The machine's own sources."""
        for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
            if path.is_file():
                yield from (line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))

    def versions(self, package: str) -> list[str]:
        """The versions of a package that there are."""
        rows = output("apt-cache", *self.options, "madison", package).splitlines()
        return [row.split("|")[1].strip() for row in rows if row.count("|") >= 2]

    def missing_libraries(self, packages: list[str]) -> list[str]:
        """The libraries that packages need and the machine lacks."""
        found: list[str] = []
        todo = list(packages)
        while todo:
            rows = output("apt-cache", *self.options, "depends", "--important", todo.pop()).splitlines()
            for row in rows:
                name = row.partition("Depends:")[2].strip()
                if not name.startswith("lib") or name in found:
                    continue
                known = subprocess.run(
                    ["dpkg-query", "-W", "-f", "${db:Status-Status}", name], capture_output=True, text=True
                )
                if known.stdout != "installed":
                    found.append(name)
                    todo.append(name)
        return found

    def unpack(self, packages: list[str], into: Path, only: str | None = None) -> None:
        """Downloads packages and unpacks them, or what `only` matches of them, into a folder."""
        partial = into.with_name(into.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        output("apt-get", *self.options, "download", *packages, folder=partial)
        for package in sorted(partial.glob("*.deb")):
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as tar:
                chosen = ["--wildcards", only] if only else []
                subprocess.run(["tar", "-x", "-C", partial, *chosen], stdin=tar.stdout, check=True)
            package.unlink()
        shutil.rmtree(into, ignore_errors=True)
        partial.rename(into)


def by_source_package() -> Way:
    """The standard library built from Debian's source package of this very compiler.

    Raises:
        Unavailable: This is no Debian, or the version is none that it has.
    """
    version = rustc_version()
    folder = TOOLS / f"rust-src-{version}"
    if not folder.is_dir():
        apt = Apt(SOURCE_SUITES)
        found = [known for known in apt.versions("rust-src") if known.startswith(f"{version}+")]
        if not found:
            raise Unavailable(f"apt: no suite has rust-src {version}")
        apt.unpack([f"rust-src={found[0]}"], folder, "./usr/src/rustc-*/library")
    library = next(folder.glob("usr/src/rustc-*/library"))
    # Cargo looks for the sources below the compiler's own folder unless this names another.
    environment = {"RUSTC_BOOTSTRAP": "1", "__CARGO_TESTS_ONLY_SRC_ROOT": str(library)}
    return Way("rust-src of Debian", options=["-Zbuild-std=std,panic_abort"], environment=environment)


def by_browser_compiler() -> Way:
    """Debian's compiler for web browsers, with sources of the same version; it has no clippy.

    Raises:
        Unavailable: This is no Debian 12.
    """
    folder = TOOLS / "rust-web"
    if not folder.is_dir():
        apt = Apt(BROWSER_SUITES)
        programs = ["rustc-web", "cargo-web", "libstd-rust-web-dev"]
        apt.unpack([*programs, "rust-web-src", *apt.missing_libraries(programs)], folder)
    library = next(folder.glob("usr/src/rustc-*/library"), folder / "usr/lib/rustlib/src/rust/library")
    libraries = [*folder.glob("usr/lib/*-linux-gnu*"), folder / "usr" / "lib"]
    environment = {
        "RUSTC_BOOTSTRAP": "1",
        "RUSTC": str(folder / "usr" / "bin" / "rustc"),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "__CARGO_TESTS_ONLY_SRC_ROOT": str(library),
    }
    cargo = [str(folder / "usr" / "bin" / "cargo")]
    return Way("Debian's rustc-web, without lints", cargo, "check", ["-Zbuild-std=std,panic_abort"], environment)


WAYS = {"rustup": by_rustup, "source-package": by_source_package, "browser-compiler": by_browser_compiler}


def native() -> Way:
    """On macOS itself."""
    return Way("this very system")


def check(way: Way, folder: Path, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs the check on the sources in `folder`."""
    environment = {**os.environ, **way.environment}
    if platform.system() != "Darwin":
        compiler = TOOLS / "compiler"
        compiler.parent.mkdir(parents=True, exist_ok=True)
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)
        name = TARGET.replace("-", "_")
        environment |= {f"{tool}_{name}": str(compiler) for tool in ("CC", "CXX")}
        environment |= {f"{tool}_{name}": "true" for tool in ("AR", "RANLIB")}
        # There is no Python of the target to ask.
        environment["PYO3_CROSS_PYTHON_VERSION"] = "3.11"
    return subprocess.run(way.command(), cwd=folder, env=environment, text=True, capture_output=capture)


def plant(folder: Path) -> None:
    """Copies the sources, with a misspelt name of Core ML's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    path = folder / PLANTED_IN
    text = path.read_text()
    if NAME not in text:
        sys.exit(f"anebake: error: `{PLANTED_IN}` has no `{NAME}`; `tools/macos_check.py` names a place that has one")
    path.write_text(text.replace(NAME, MISSPELT))


def attempt(name: str, reasons: list[str]) -> Way | None:
    """A way by name; without it, `reasons` gains why."""
    try:
        return WAYS[name]()
    except Unavailable as error:
        reasons.append(f"  {name}: {error}")
        return None


def choose(names: list[str]) -> Way:
    """The first way that can be had."""
    if platform.system() == "Darwin":
        return native()
    reasons: list[str] = []
    found = (way for way in (attempt(name, reasons) for name in names) if way)
    if way := next(found, None):
        return way
    print(f"anebake: error: the macOS code cannot be checked here: {TARGET} has no standard library", file=sys.stderr)
    print("\n".join(reasons), file=sys.stderr)
    print(f"  hint: `rustup target add {TARGET}`, or set {SKIP}=1 to go on without this check", file=sys.stderr)
    sys.exit(3)


def main() -> int:
    """Checks, then proves that the check finds something."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--way", choices=list(WAYS), help="this way or none")
    options = parser.parse_args()
    if os.environ.get(SKIP) == "1":
        print(f"macOS check: SKIPPED, {SKIP} is set; the macOS code was not looked at")
        return 0
    way = choose([options.way] if options.way else list(WAYS))
    print(f"macOS check: {way.subcommand} for {TARGET} with {way.name}", flush=True)
    if check(way, ROOT).returncode != 0:
        return 1
    planted = TOOLS / "planted"
    plant(planted)
    done = check(way, planted, capture=True)
    if done.returncode == 0 or MISSPELT.rpartition(":")[2] not in done.stderr or "E0599" not in done.stderr:
        print(f"anebake: error: the check did not find `{MISSPELT}` in `{planted}`:", file=sys.stderr)
        print(done.stderr, file=sys.stderr)
        return 1
    print("macOS check: fine, and it finds a misspelt name of Core ML's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
