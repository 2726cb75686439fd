"""Several processes that train as one, as torchrun starts them."""

import socket
from typing import Any

from front import start

DEADLINE = 120  # seconds, against hanging only


def as_torchrun(count: int) -> list[dict[str, str]]:
    """The environments that torchrun gives to its processes, without the seconds of its start."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def two_processes(argv: list[Any]) -> str:
    """Run a command in two processes that must succeed; return what they said."""
    processes = [start(*argv, env=env) for env in as_torchrun(2)]
    try:
        said = "".join(one.communicate(timeout=DEADLINE)[1].decode() for one in processes)
    finally:
        for one in processes:
            one.kill()
    assert [one.returncode for one in processes] == [0, 0], said
    return said
