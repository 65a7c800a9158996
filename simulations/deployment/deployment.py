"""A real deployment on this machine, with TLS and SuperNode authentication, in which much fails.

    python simulations/deployment/deployment.py --output runs/deployment

A SuperLink and four SuperNodes run the audited app in ``app``, four rounds, two to four minutes:

- a SuperNode that trusts another CA, one without a key and one whose key is not registered are
  refused, and so is `flwr` with another CA;
- the server app is killed in round 2, and starts again from the model after round 1;
- a SuperNode is killed while it trains; after the round it comes back under its own id;
- the SuperLink is killed in round 3, and both start again;
- one SuperNode lies: an update 20 times as long, then a million examples, then NaN; in the end its
  registration is taken away.

What is left in ``--output`` is the record and the report of one run of four rounds, whose faults
say what happened and which node it was. ``--logs`` keeps what every process has logged.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import signal
import tempfile
from pathlib import Path

from certificates import make_certificates, make_node_key
from flower_processes import (
    PATIENCE,
    Popen,
    Processes,
    connection,
    flwr_start,
    server_apps,
    superlink,
    supernode,
)

HERE = Path(__file__).parent
APP = HERE / "app"
NODES, ROUNDS = 4, 4
SLOW, DIES, LIES = 1, 2, 3  # partitions
# By the numbers of the messages that a node was sent to train on. The answers to the second are
# lost with the server app, and those to the fourth with the SuperLink.
CONFIGS = {
    SLOW: 'hold-in="2 4"',
    DIES: "hold-in=3",
    LIES: "huge-in=1 heavy-in=5 nan-from=6",
}


@dataclasses.dataclass(frozen=True)
class Deployment:
    """Processes, and what they trust.

    Attributes:
        processes: the SuperLink's and the SuperNodes'.
        keys: folder of certificates and keys.
        output: folder of the record.
    """

    processes: Processes
    keys: Path
    output: Path

    def superlink(self, port: int = 0) -> str:
        """Start the SuperLink; what it knows of nodes is in a file, so that it may be killed."""
        database = str(self.processes.home / "superlink.db")
        options = ("--enable-supernode-auth", "--database", database)
        return superlink(
            self.processes, *options, certificates=self.keys, port=port
        )

    def register(self) -> None:
        """Let the keys of all SuperNodes in."""
        started = {}
        for node in range(NODES):
            name, public = (
                f"register-{node}",
                str(self.keys / f"node-{node}.pub"),
            )
            command = (
                "flwr",
                "supernode",
                "register",
                public,
                "here",
                "--name",
                f"node-{node}",
            )
            started[name] = self.processes.start(name, *command)
        for name, process in started.items():
            if process.wait(PATIENCE):
                raise RuntimeError(self.processes.log(name))

    def supernode(self, address: str, node: int) -> Popen:
        """Start a SuperNode."""
        config = f'diary="{self.diary(node)}" {CONFIGS.get(node, "")}'
        return supernode(
            self.processes,
            address,
            node,
            NODES,
            "--root-certificates",
            str(self.keys / "ca.pem"),
            "--auth-supernode-private-key",
            str(self.keys / f"node-{node}"),
            config=config,
        )

    def diary(self, node: int) -> Path:
        """Has a line for each message that a node was sent to train."""
        return self.processes.home / f"diary-{node}.txt"

    def go_on(self, node: int, message: int) -> None:
        """Let a node that holds its answer to a message give it."""
        self.diary(node).with_suffix(f".go-{message}").touch()

    def await_messages(self, number: int) -> None:
        """Wait until each node was sent so many messages to train."""

        def done() -> bool:
            diaries = (self.diary(node) for node in range(NODES))
            return all(
                path.exists() and len(path.read_text().splitlines()) >= number
                for path in diaries
            )

        self.processes.wait_until(
            done, "run", f"send {number} messages to each node"
        )

    def await_model(self, server_round: int) -> None:
        """Wait until the server app has kept the model after a round."""
        path = self.output / "unfinished" / f"model-{server_round}.npz"
        self.processes.wait_until(path.exists, "run", f"keep {path}")

    def node_ids(self, node: int) -> list[str]:
        """The ids under which a SuperNode was known, each time that it was started."""
        return re.findall(
            r"SuperNode ID: (\d+)", self.processes.log(f"supernode-{node}")
        )

    def run(self) -> Popen:
        """Start the app, or go on with it."""
        settings = {
            "num-server-rounds": ROUNDS,
            "min-nodes": NODES,
            "max-share": 0.4,  # four nodes are few
            "output": str(self.output),
        }
        return flwr_start(self.processes, APP, settings)


def refused(here: Deployment, address: str) -> dict[str, str]:
    """What those are told who may not take part, by who they are; each ends with an error."""
    ca, other = str(here.keys / "ca.pem"), here.processes.home / "other"
    make_certificates(other)
    make_node_key(other / "node-0")
    key = "--auth-supernode-private-key"
    once = ("--max-retries", "0")
    cases = {
        "another CA": (str(other / "ca.pem"), key, str(here.keys / "node-0")),
        "no key": (ca,),
        "a key that is not registered": (ca, key, str(other / "node-0")),
    }
    started = {
        who: (
            NODES + i,
            supernode(
                here.processes,
                address,
                NODES + i,
                NODES + 3,
                "--root-certificates",
                *options,
                *once,
            ),
        )
        for i, (who, options) in enumerate(cases.items())
    }
    connection(here.processes, "elsewhere", address, other)
    flwr = here.processes.start(
        "elsewhere", "flwr", "supernode", "list", "elsewhere"
    )
    told = {}
    for who, (number, process) in started.items():
        if process.wait(PATIENCE) == 0:
            raise RuntimeError(f"A SuperNode with {who} was not refused.")
        lines = here.processes.log(f"supernode-{number}").splitlines()
        told[who] = lines[
            lines.index("Failed to initialize the connection to the SuperLink.")
            + 1
        ]
    if flwr.wait(PATIENCE) == 0:
        raise RuntimeError("flwr with another CA was not refused.")
    return told


def expel(here: Deployment, node_id: str) -> None:
    """Take a SuperNode's registration away, and wait until it has noticed."""
    command = ("flwr", "supernode", "unregister", node_id, "here")
    if here.processes.start("unregister", *command).wait(PATIENCE):
        raise RuntimeError(here.processes.log("unregister"))
    here.processes.latest[f"supernode-{LIES}"].wait(PATIENCE)


def say(text: str) -> None:
    print(text, flush=True)


def play(processes: Processes, output: Path) -> Deployment:
    """The whole story; returns the deployment, whose processes go on."""
    here = Deployment(processes, processes.home / "keys", output)
    make_certificates(here.keys)
    for node in range(NODES):
        make_node_key(here.keys / f"node-{node}")
    address = here.superlink()
    here.register()
    for who, why in refused(here, address).items():
        say(f"refused, with {who}: {why}")
    victim = [here.supernode(address, node) for node in range(NODES)][DIES]

    run = here.run()
    here.await_model(1)
    here.await_messages(2)
    for number in server_apps(processes):
        os.kill(number, signal.SIGKILL)
    processes.end(run)  # it would notice in a minute or two
    here.go_on(SLOW, 2)
    say("round 2: the server app was killed")

    run = here.run()
    here.await_messages(3)
    processes.end(victim, signal.SIGKILL)
    say(f"round 2, again: SuperNode {DIES} was killed while it trained")
    here.await_model(
        2
    )  # once the SuperLink knows that it is dead: only then may it come back
    here.supernode(address, DIES)
    here.await_messages(4)
    processes.end(processes.latest["superlink"], signal.SIGKILL)
    processes.end(run)
    here.go_on(SLOW, 4)
    say("round 3: the SuperLink was killed")

    here.superlink(int(address.rpartition(":")[2]))
    run = here.run()
    if run.wait(PATIENCE):
        raise RuntimeError(processes.log("run"))
    say(processes.log("run"))
    return here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/deployment"))
    parser.add_argument("--logs", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = options.logs or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        processes = Processes(home.resolve())
        try:
            here = play(processes, options.output.resolve())
            expel(here, here.node_ids(LIES)[0])
            say(f"SuperNode {LIES} lied, and was expelled")
        finally:
            processes.end_all()


if __name__ == "__main__":
    main()
