"""Looks into built sdists and wheels: licence, kernels and data are there.

`python .ci/check_dist.py FOLDER PROJECT...`: every project must have an sdist in FOLDER, and one that is not compiled a
wheel.
"""

from __future__ import annotations

import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

TAKEN = {"bitnet_rocm": ("plugins/bitnet-cuda/src/bitnet_cuda/kernels/portable", "bitnet_rocm/kernels/portable")}
"""Folders that a build takes from another project, and where it puts them."""


def contents(archive: Path) -> set[str]:
    """Names of the files in a wheel, or in an sdist without its top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def missing(folder: Path, project: Path) -> list[str]:
    """Return what is missing in the archives of a project, one line for each fault."""
    name = tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
    source = {
        path.relative_to(project / "src").as_posix()
        for path in (project / "src").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }
    if name in TAKEN:
        folder_of_other, inside_this = TAKEN[name]
        source |= {f"{inside_this}/{path.name}" for path in Path(folder_of_other).iterdir()}
    native = {path.relative_to(project).as_posix() for path in (project / "native").rglob("*") if path.is_file()}
    sdists, wheels = sorted(folder.glob(f"{name}-*.tar.gz")), sorted(folder.glob(f"{name}-*.whl"))
    compiled = (project / "CMakeLists.txt").exists()  # the session of such a plugin has its wheel
    faults = [f"{name}: no {kind}" for kind, found in (("sdist", sdists), ("wheel", wheels or compiled)) if not found]
    for sdist in sdists:
        wanted = {"LICENSE", "README.md", *native, *(f"src/{path}" for path in source)}
        faults += [f"{sdist.name} lacks {path}" for path in sorted(wanted - contents(sdist))]
    for wheel in wheels:
        inside = contents(wheel)
        faults += [f"{wheel.name} lacks {path}" for path in sorted(source - inside)]
        if not any(path.endswith(".dist-info/licenses/LICENSE") for path in inside):
            faults.append(f"{wheel.name} lacks its LICENSE")
    return faults


def main() -> None:
    """Exit with what is missing."""
    folder, *projects = map(Path, sys.argv[1:])
    faults = [fault for project in projects for fault in missing(folder, project)]
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
