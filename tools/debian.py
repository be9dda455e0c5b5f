"""Debian packages without installing them: downloaded by the machine's own apt and unpacked into a folder.

The system's lists and configuration are not touched, and no mirror is named here: the machine's own sources name it.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


class Unavailable(Exception):
    """Something that cannot be had here."""


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


class Apt:
    """apt with lists and configuration of its own; the mirrors are those of the machine's own sources."""

    def __init__(self, folder: Path, suites: list[str]) -> None:
        """Fetches the lists of `suites` into `folder`; without suites, those of the machine's own sources.

        Raises:
            Unavailable: This is no Debian, or no mirror has any of them.
        """
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
        queue = list(packages)
        while queue:
            rows = output("apt-cache", *self.options, "depends", "--important", queue.pop()).splitlines()
            for row in rows:
                name = row.partition("Depends:")[2].strip()
                if not name.startswith("lib") or name in found:
                    continue
                known = subprocess.run(
                    ["dpkg-query", "-W", "-f", "${db:Status-Status}", name], capture_output=True, text=True
                )
                if known.stdout != "installed":
                    found.append(name)
                    queue.append(name)
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
