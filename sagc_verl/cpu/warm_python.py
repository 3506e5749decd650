#!/usr/bin/env python3
"""Client of the warm interpreter (warm.py): `warm_python.py -c CODE ...`, `-m MODULE ...` or `SCRIPT ...`.

Ray and multiprocessing run this in place of `python`. It asks the warm server to fork, passes on arguments,
environment, directory and open files, waits, and exits as the fork does. Without a server it becomes the real
interpreter.
Standard library only, and little of it: this is what every process of a run starts with.
"""

import os
import signal
import socket
import sys

SERVER = "SAGC_WARM_SERVER"
PYTHON = "SAGC_WARM_REAL_PYTHON"
RAY_JOB = "RAY_JOB_ID"
FIRST_JOB = "01000000"  # the job of the driver that started the Ray cluster
MAX_FDS = 200
PLAIN_FLAGS = {"-u", "-B", "-s", "-E", "-I", "-P"}


def can_fork(arguments):
    """Whether the arguments are of a kind that the server can run."""
    for argument in arguments:
        if argument in PLAIN_FLAGS:
            continue
        return argument in ("-c", "-m") or not argument.startswith("-")
    return False


def open_files():
    """The numbers of this process's open files, less the one that listing them opens."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    found = []
    for number in listed:
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return sorted(found)


def become_real(arguments):
    python = os.environ.get(PYTHON) or sys.executable
    os.execv(python, [python, *arguments])


def main(arguments):
    server = os.environ.get(SERVER, "")
    if not server or not can_fork(arguments) or os.environ.get(RAY_JOB, FIRST_JOB) != FIRST_JOB:
        become_real(arguments)
    files = open_files()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(server)
    except OSError:
        become_real(arguments)
    if len(files) > MAX_FDS:
        become_real(arguments)
    import json

    request = {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd(), "files": files}
    payload = json.dumps(request).encode()
    socket.send_fds(connection, [len(payload).to_bytes(8, "big")], files)
    connection.sendall(payload)
    # What ends this process must end the fork: the server sees the connection close and passes it on.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, frame: os._exit(128 + got))
    # A process of Ray's or multiprocessing's must not outlive the one that started it.
    parent = os.getppid() if RAY_JOB in os.environ or "--multiprocessing-fork" in arguments else None
    connection.settimeout(1.0)
    answer = b""
    while len(answer) < 4:
        try:
            part = connection.recv(4 - len(answer))
        except TimeoutError:
            if parent is not None and os.getppid() != parent:
                os._exit(1)
            continue
        if not part:
            os._exit(1)  # the server is gone, and its forks with it
        answer += part
    status = int.from_bytes(answer, "big", signed=True)
    if status < 0:  # died of a signal: die of the same
        if -status != signal.SIGKILL:  # whose action cannot be set
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
