"""A real Slurm on one machine for as long as a test takes: munge, a controller and small nodes, all in one folder.

    python -m tests.launch.real_slurm        # one to play with; says what to export, until Ctrl-C

It needs the commands that Debian's `slurm-wlm` and `munge` install, and changes nothing outside its folder. Nodes have
two cores and two GPUs that are only counted: Slurm hands them out, torch sees none.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NODES = ("node1", "node2", "node3")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
_PATIENCE_S = 60

# cred_expire: a job that was requeued waits as long before it starts again, two minutes unless said. MinJobAge: for how
# long the controller remembers jobs that ended. Without affinity, as all nodes are the same machine.
_CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
MinJobAge=3600
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
GresTypes=gpu
"""


def obstacle() -> str | None:
    """Why there can be no Slurm here; None if there can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    return f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge" if missing else None


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Environment variables with which `sbatch` and the others reach a Slurm that lives as long as this is entered.

    Args:
        folder: for configuration, state and logs; its path must be short, as a socket is in it.
    """
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    _write(folder)
    with ExitStack() as daemons:
        key = ("--key-file", folder / "munge.key", "--seed-file", folder / "munge.seed")
        files = ("--socket", folder / "munge.socket", "--pid-file", folder / "munge.pid", "--log-file", folder / "log")
        daemons.enter_context(_daemon(environment, "munged", "--foreground", "--force", *key, *files))
        _wait(lambda: (folder / "munge.socket").exists(), "munged does not answer", folder)
        daemons.enter_context(_daemon(environment, "slurmctld", "-D", "-c"))
        for node in NODES:
            daemons.enter_context(_daemon(environment, "slurmd", "-D", "-N", node))
        _wait(
            lambda: _ask(environment, "sinfo", "-h", "-p", "all", "-o", "%T %D") == f"idle {len(NODES)}",
            "no idle nodes",
            folder,
        )
        try:
            yield environment
        finally:
            _ask(environment, "scancel", "--user", getpass.getuser())
            _wait(lambda: _ask(environment, "squeue", "-h") == "", "jobs do not end", folder)


def _write(folder: Path) -> None:
    """Configuration, a key, and folders for state."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(1 + len(NODES))]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    host = socket.gethostname().partition(".")[0]
    lines = [_CONFIG.format(host=host, user=getpass.getuser(), folder=folder, ports=ports)]
    for node, port in zip(NODES, ports[1:], strict=True):
        lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 Gres=gpu:2")
    lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP")
    lines.append(f"PartitionName=few Nodes={NODES[0]} MaxTime=60 State=UP")
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    gpus = [f"NodeName={','.join(NODES)} Name=gpu File={device}\n" for device in ("/dev/null", "/dev/zero")]
    (folder / "gres.conf").write_text("".join(gpus))
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o400)
    for name in ("state", *NODES):
        (folder / name).mkdir()


@contextmanager
def _daemon(environment: dict[str, str], *command: object) -> Iterator[None]:
    arguments = [str(word) for word in command]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(arguments, env={**os.environ, **environment}, **quiet)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ask(environment: dict[str, str], *command: str) -> str | None:
    """What a command prints; None if it fails."""
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def _wait(ready, problem: str, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            logs = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in folder.glob("*.log"))
            raise TimeoutError(f"Slurm: {problem} after {_PATIENCE_S} s.\n{logs}")
        time.sleep(0.1)


def _path() -> str:
    """Daemons are in folders that not every user's PATH has."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


if __name__ == "__main__":
    if problem := obstacle():
        sys.exit(f"There can be no Slurm here: {problem}.")
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, slurm(Path(name)) as variables:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit())  # by way of what ends the daemons
        print(f"export SLURM_CONF={variables['SLURM_CONF']}", flush=True)
        signal.pause()
