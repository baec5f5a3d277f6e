"""Starts servers quickly: each is forked from a process that has imported the SDK already.

`python mcp_nursery.py SOCKET` is that process. A server's command is `python mcp_start.py SOCKET
DATABASE`, which hands its own pipes over and lives as long as the server does.
"""

import json
import os
import signal
import socket
import sys
import threading

FDS = 3


def _child(link: socket.socket, told: dict[str, object], fds: list[int]) -> None:
    from tests.actions import mcp_program  # noqa: PLC0415 - imported before any fork

    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ["PAY_TOKEN"] = str(told["token"])

    def watch() -> None:
        link.recv(1)
        os._exit(4)  # whoever started it was ended

    threading.Thread(target=watch, daemon=True).start()
    mcp_program.run(str(told["path"]))
    os._exit(0)


def main(path: str) -> None:
    import tests.actions.mcp_program  # noqa: F401, PLC0415 - for all that are forked

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            link, _ = listener.accept()
            data, fds, _, _ = socket.recv_fds(link, 4096, FDS)
            if not data:
                return
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _child(link, json.loads(data), fds)
            link.close()
            for fd in fds:
                os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1])
