"""The server: federated averaging of three hospitals in NVIDIA FLARE's simulator."""

import argparse
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from nvflare.recipe.utils import add_final_global_evaluation
from three_hospitals.task import HOSPITALS, Net


def main() -> None:
    parser = argparse.ArgumentParser(description="Three hospitals in the simulator.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("runs/nvflare"))
    options = parser.parse_args()
    output = options.output.resolve()  # each hospital has a working directory of its own
    recipe = FedAvgRecipe(
        name="three-hospitals",
        model=Net(),
        min_clients=len(HOSPITALS),
        num_rounds=options.rounds,
        train_script=str(Path(__file__).with_name("hospital_client.py")),
        train_args=f"--audits {output}",
    )
    add_final_global_evaluation(recipe)  # sends each hospital the last model
    recipe.execute(SimEnv(clients=list(HOSPITALS), workspace_root=str(output / "simulator")))
    for hospital in HOSPITALS:
        print((output / hospital / "answer.txt").read_text("utf-8"))


if __name__ == "__main__":
    main()
