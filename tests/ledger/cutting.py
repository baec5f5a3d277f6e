"""A connection to PostgreSQL that breaks on command: between a COMMIT and its answer."""

import select
import socket
import threading
from contextlib import suppress
from pathlib import Path

COMMIT = b"Q\x00\x00\x00\x0bcommit\x00"  # as libpq writes it


class Cutter:
    """Stands between clients and a server's socket, and passes on what both say.

    `at_commit` says what is done when the next COMMIT comes by: "lose" it before the server has it,
    or pass it on and "cut" the connection at once, or "deafen": cut once the server has answered.
    """

    def __init__(self, folder: Path, server: str) -> None:
        self.folder, self._server = folder, server
        self.at_commit = ""
        self.cut = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._pass_on, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._server)
            deaf = False
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data or (deaf and ready is server):
                        self.cut.set()
                        return
                    if ready is client and self.at_commit and data == COMMIT:
                        how, self.at_commit = self.at_commit, ""
                        if how == "lose":
                            self.cut.set()
                            return
                        deaf = how == "deafen"
                        server.sendall(data)
                        if how == "cut":
                            self.cut.set()
                            return
                        continue
                    (server if ready is client else client).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)
