"""Runs the macOS code on Linux, against stand-ins for the classes of Core ML: `cargo test` in tests/standin.

Needs GCC's Objective-C front end and GNUstep's Foundation: those that are installed, else Debian's packages, unpacked
below `target/standin` without installing anything. The crates that speak to Apple's frameworks are copied there and
told to link none.

Exit status: that of the tests; 0 with the reason where the stand-ins cannot be had here, and then nothing was tested.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from debian import Apt, Unavailable, output

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "tests" / "standin"
FOLDER = ROOT / "target" / "standin"
COPIES = ["objc2", "objc2-core-ml", "objc2-core-video", "objc2-exception-helper"]
FRAMEWORK = re.compile(r'^#\[link\(name = "(\w+)", kind = "framework"\)\]$', re.MULTILINE)


def compiles(compiler: list[str]) -> bool:
    """Whether a compiler knows Objective-C and GNUstep's Foundation."""
    command = [*compiler, "-x", "objective-c", "-fsyntax-only", "-"]
    done = subprocess.run(command, input="#import <Foundation/Foundation.h>\n", capture_output=True, text=True)
    return done.returncode == 0


def prepare() -> tuple[list[str], list[Path]]:
    """A compiler for Objective-C with its options, and the folders of the libraries to link.

    Raises:
        Unavailable: There is none, and this is no Debian that has the packages.
    """
    version = output("gcc", "-dumpversion").strip().split(".")[0]
    machine = output("gcc", "-dumpmachine").strip()
    options = ["gcc", "-std=gnu11", "-fobjc-exceptions", "-fexceptions", "-fconstant-string-class=NSConstantString"]
    installed = [*options, "-I/usr/include/GNUstep"]
    if compiles(installed):
        return installed, []
    root = FOLDER / f"gcc-{version}"
    if not root.is_dir():
        release = Path("/etc/os-release")
        names = re.search(r"^VERSION_CODENAME=(\w+)$", release.read_text() if release.exists() else "", re.MULTILINE)
        if not names:
            raise Unavailable("no Objective-C compiler with GNUstep is installed, and this is no Debian")
        apt = Apt(FOLDER / "apt", [names[1], f"{names[1]}-updates", f"{names[1]}-security"])
        programs = [f"gobjc-{version}", f"libobjc-{version}-dev", "libgnustep-base-dev"]
        apt.unpack([*programs, *(name for name in apt.missing_libraries(programs) if name not in programs)], root)
    folder = root / "usr" / "lib" / "gcc" / machine / version
    headers = [folder / "include", root / "usr" / "include" / "GNUstep", root / "usr" / "include" / machine / "GNUstep"]
    headers.append(root / "usr" / "include" / machine)
    unpacked = [*options, f"-B{folder}", *(f"-I{path}" for path in headers)]
    if not compiles(unpacked):
        raise Unavailable(f"what was unpacked in `{root}` does not compile Objective-C")
    return unpacked, [root / "usr" / "lib", root / "usr" / "lib" / machine, folder]


def copy_crates() -> None:
    """Copies the crates that link frameworks, as Cargo.lock has them, and adapts them."""
    output("cargo", "fetch", "--manifest-path", str(ROOT / "Cargo.toml"))
    text = output("cargo", "metadata", "--format-version", "1", "--offline", folder=ROOT)
    for name in COPIES:
        found = re.search(rf'"manifest_path":"([^"]*/{name}-\d[^"/]*)/Cargo.toml"', text)
        if not found:
            raise Unavailable(f"Cargo.lock has no crate `{name}`")
        copy = FOLDER / "crates" / name
        if (
            copy.is_dir()
            and (copy / "Cargo.toml.orig").read_bytes() == (Path(found[1]) / "Cargo.toml.orig").read_bytes()
        ):
            continue
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(found[1], copy)
        adapt(name, copy)


def adapt(name: str, copy: Path) -> None:
    """Makes a copied crate fit GCC's runtime."""

    def change(path: Path, old: str | re.Pattern[str], new: str) -> None:
        before = path.read_text()
        after = re.sub(old, new, before) if isinstance(old, re.Pattern) else before.replace(old, new)
        if before == after:
            sys.exit(f"anebake: error: `{path}` is not as expected; `tools/standin.py` must learn its new form")
        path.write_text(after)

    match name:
        case "objc2":
            # Classes are looked up when they are used: the static form is that of Apple's linker.
            change(copy / "Cargo.toml", '    "unstable-static-class",\n    "objc2-exception', '    "objc2-exception')
        case "objc2-exception-helper":
            # The option is clang's.
            change(copy / "build.rs", re.compile(r'builder\.flag\("-fobjc-runtime=[^"]*"\);'), "")
        case _:
            change(copy / "src" / "generated" / "mod.rs", FRAMEWORK, "")


def main() -> int:
    """Prepares and runs the tests."""
    if platform.system() != "Linux":
        print("stand-in tests: SKIPPED: they are for Linux; here is Core ML itself")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        compiler, libraries = prepare()
        copy_crates()
    except Unavailable as error:
        print(f"stand-in tests: SKIPPED: {error}; the macOS code was not run")
        return 0
    objects = FOLDER / "standin.o"
    flags = ["-O1", "-g", "-Wall", "-Wno-multichar", "-Wno-unused-variable", "-c"]
    subprocess.run([*compiler, *flags, str(CRATE / "standin.m"), "-o", str(objects)], check=True)
    library = FOLDER / "libstandin.a"
    library.unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", str(library), str(objects)], check=True)
    wrapper = FOLDER / "cc"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(compiler)} "$@"\n')
    wrapper.chmod(0o755)
    # The same versions as everywhere.
    shutil.copy(ROOT / "Cargo.lock", CRATE / "Cargo.lock")
    python = sysconfig.get_config_var("LIBDIR")
    environment = {
        **os.environ,
        "RUSTFLAGS": "--cfg coreml_standin",
        "STANDIN_FOLDER": str(FOLDER),
        "STANDIN_LIBRARIES": os.pathsep.join(map(str, libraries)),
        "CC_x86_64_unknown_linux_gnu": str(wrapper),
        "CC_aarch64_unknown_linux_gnu": str(wrapper),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [python, os.environ.get("LD_LIBRARY_PATH")])),
        "ANEBAKE_PYTHON": str(ROOT / ".venv" / "bin" / "python"),
    }
    host = re.search(r"^host: (\S+)$", output("rustc", "-vV"), re.MULTILINE)
    target = ["--target", host[1]] if host else []
    command = ["cargo", "test", *target, "--target-dir", str(FOLDER / "target"), *sys.argv[1:]]
    return subprocess.run(command, cwd=CRATE, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
