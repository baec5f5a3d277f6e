"""On which kind of file system a folder is: on some, locks and syncs do not hold."""

import os
from pathlib import Path
from typing import Final

NETWORK: Final = frozenset(
    {
        "afs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.sshfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)


def file_system(folder: Path) -> str:
    """Return the type of the file system under `folder`, "" where the system doesn't tell."""
    try:
        device = folder.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""
