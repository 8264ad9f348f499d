"""Write epp/pb from the .proto files beside this script, or say whether it is up to date.

    python protos/generate.py            writes epp/pb
    python protos/generate.py --check    exits with 1 and names the files that differ from what the protos give

The virtual path `-Iepp/pb=protos` makes a proto's name the path of its module, so generated imports need no rewriting.
Only messages are generated: the transports pass bytes and name their methods themselves, so no stubs are needed.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
GENERATED = ROOT / "epp" / "pb"
PACKAGE_DOCSTRING = '"""Generated from protos/ by `make generate`; never edited by hand."""\n'


def generate(target: Path) -> dict[Path, bytes]:
    """Run protoc with `target` as its output directory.

    Returns:
        The content of every file that belongs into epp/pb, by its path below epp/pb.
    """
    protoc = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-Iepp/pb={PROTOS}",
        f"--plugin=protoc-gen-mypy={Path(sysconfig.get_path('scripts')) / 'protoc-gen-mypy'}",
        f"--python_out={target}",
        f"--mypy_out=quiet:{target}",
        *(f"epp/pb/{proto.relative_to(PROTOS).as_posix()}" for proto in sorted(PROTOS.rglob("*.proto"))),
    ]
    subprocess.run(protoc, check=True)
    package = target / "epp" / "pb"
    for directory in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (directory / "__init__.py").write_text(PACKAGE_DOCSTRING if directory == package else "")
    return read_files(package)


def read_files(directory: Path) -> dict[Path, bytes]:
    """Every file below the directory but Python's own byte code, by its relative path."""
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def stale_files(wanted: dict[Path, bytes], found: dict[Path, bytes]) -> list[str]:
    """One sentence for each file that is missing, left over, or different."""
    sentences = []
    for path in sorted(wanted.keys() | found.keys()):
        if path not in found:
            sentences.append(f"{path}: expected by the protos, not there")
        elif path not in wanted:
            sentences.append(f"{path}: comes from no proto")
        elif wanted[path] != found[path]:
            sentences.append(f"{path}: differs from what the protos give")
    return sentences


def write(wanted: dict[Path, bytes]) -> None:
    """Make epp/pb hold exactly these files; a file that is right already keeps its time stamp."""
    found = read_files(GENERATED)
    for path in found.keys() - wanted.keys():
        (GENERATED / path).unlink()
    for path, content in wanted.items():
        if found.get(path) != content:
            (GENERATED / path).parent.mkdir(parents=True, exist_ok=True)
            (GENERATED / path).write_bytes(content)


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate epp/pb from protos/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if epp/pb is not up to date")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        wanted = generate(Path(scratch))
    if not check:
        write(wanted)
        print(f"epp/pb: {len(wanted)} files, as the protos give them")
        return 0
    stale = stale_files(wanted, read_files(GENERATED))
    for sentence in stale:
        print(f"epp/pb/{sentence}", file=sys.stderr)
    if stale:
        print("epp/pb is stale: run `make generate`", file=sys.stderr)
        return 1
    print("epp/pb is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
