"""A hospital whose SuperNode is killed in a round, and goes on with the audit in its folder."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from flower_processes import PATIENCE, flwr_start, superlink, supernode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.superlink,
    pytest.mark.weekly,
]

APP = Path(__file__).parents[2] / "simulations" / "apps" / "three-hospitals"
NODES, ROUNDS, DEADLY = 3, 4, 2
VICTIM = 2  # the partition of "south"

IN_CONTEXT = "with audit_records(context, optimizer"
HANDLER = 'app.query("records")(answer_records)\n'
HANDLER_OF_FOLDER = """
@app.query("records")
def answer(message: Message, context: Context) -> Message:
    return answer_records(message, folder_of(context))


def folder_of(context: Context) -> str:
    return {folder!r} + str(context.node_config["partition-id"])
"""


def in_folders(app, folder):
    """Let the app's silos keep their audits in folders."""
    path = app / "three_hospitals" / "client_app.py"
    text = path.read_text("utf-8")
    assert IN_CONTEXT in text
    assert HANDLER in text
    text = text.replace(
        IN_CONTEXT, IN_CONTEXT.replace("context", "folder_of(context)")
    )
    text = text.replace(
        HANDLER, HANDLER_OF_FOLDER.replace("{folder!r}", repr(str(folder)))
    )
    path.write_text(text, "utf-8")


def test_a_silo_is_killed_and_its_audit_goes_on(processes, tmp_path):
    address = superlink(processes)
    nodes = [supernode(processes, address, i, NODES) for i in range(NODES)]
    app = shutil.copytree(APP, tmp_path / "app")
    in_folders(app, tmp_path / "silo-")
    output = tmp_path / "out"
    settings = {"num-server-rounds": ROUNDS, "output": str(output)}
    run = flwr_start(processes, app, settings)
    name = f"supernode-{VICTIM}"
    processes.wait_for(name, "Receiving: train", times=DEADLY)
    processes.end(nodes[VICTIM], signal.SIGKILL)
    owed = processes.log(name).count("Sending: train") == DEADLY - 1
    supernode(processes, address, VICTIM, NODES)
    assert run.wait(PATIENCE) == 0, processes.log("run")
    assert owed

    printed = processes.log("run")
    assert "learns of one record" in printed, printed
    assert (output / "final_model.pt").exists()
    report = json.loads((output / "report.json").read_text("utf-8"))
    silos = {silo["silo"]: silo for silo in report["silos"]}
    assert silos.keys() == {"north", "east", "south"}
    assert silos["east"]["rounds"] == ROUNDS
    assert silos["south"]["rounds"] == ROUNDS - 1
    # The app keeps its accountant in the context, which did not outlive the process.
    [fault] = report["faults"]
    assert fault.startswith("south: its accountant counts 67% of the steps")
    lines = {line["adversary"]: line for line in silos["south"]["lines"]}
    assert {line["reason"] for line in lines.values()} == {""}
    assert lines["server"]["releases"] == ROUNDS - 1
    doubts = " ".join(lines["outsider"]["doubts"])
    assert "1 average could be seen only together" in doubts
