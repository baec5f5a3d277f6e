"""Keep the code of a release for the tests of the next one: `python -m tests.previous.pack COMMIT`.

The same commit always gives the same archive.
"""

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ARCHIVE: Final = HERE / "doubtless.tar.xz"
LEFT_OUT: Final = ("doubtless/testing/", "doubtless/integrations/")  # no process here needs them


def pack(commit: str) -> str:
    """Write the archive, and return the full name of the commit."""
    run = ("git", "-C", str(HERE.parents[1]))
    name = subprocess.run(
        [*run, "rev-parse", "--verify", f"{commit}^{{commit}}"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()
    tree = subprocess.run(
        [*run, "archive", "--format=tar", "--prefix=doubtless/", f"{name}:src/doubtless"],
        capture_output=True,
        check=True,
    ).stdout
    with (
        tarfile.open(fileobj=io.BytesIO(tree)) as source,
        tarfile.open(ARCHIVE, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as target,
    ):
        _add(target, "COMMIT", f"{name}\n".encode())
        for member in sorted(source.getmembers(), key=lambda found: found.name):
            content = source.extractfile(member)
            if content is not None and not member.name.startswith(LEFT_OUT):
                _add(target, member.name, content.read())
    return name


def _add(target: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)  # with neither a time nor an owner
    entry.size = len(content)
    target.addfile(entry, io.BytesIO(content))


def unpack(folder: Path) -> None:
    """Unpack the archive: the folder is then what its processes have first on their path."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


if __name__ == "__main__":
    print(f"{pack(*sys.argv[1:] or ['HEAD'])}: {ARCHIVE.stat().st_size:,} bytes")
