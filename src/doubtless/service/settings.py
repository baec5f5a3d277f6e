"""What the service is run with. Every limit has a default that holds on one small machine."""

from dataclasses import dataclass
from typing import Final

HOST: Final = "127.0.0.1"
PORT: Final = 8787


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may cost."""

    body_bytes_max: int = 1_048_576  # 413 above it
    json_depth_max: int = 100  # 400 above it
    json_values_max: int = 50_000  # the same: many small values cost far more than their bytes
    query_bytes_max: int = 4_096  # 414 above it
    path_chars_max: int = 2_048  # 414 above it
    head_bytes_max: int = 32_768  # of all headers: 431 above it, or 400 where it isn't read whole
    head_timeout_s: float = 10.0  # from the first byte, or the connection, to the last header
    body_timeout_s: float = 10.0  # for the whole body
    read_timeout_s: float = 10.0  # how long a client may leave an answer unread: then it is cut off
    idle_timeout_s: float = 15.0  # between two requests on one connection
    connections_max: int = 500  # 503 above it; far above it they are closed unanswered
    wait_max_ms: int = 3_600_000  # the longest `wait` of a call
    page_max: int = 200
    page: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How the service is run."""

    host: str = HOST
    port: int = PORT  # 0: a free one
    grace_s: float = 10.0  # how long open attempts get to end when the service is stopped
    limits: Limits = Limits()
