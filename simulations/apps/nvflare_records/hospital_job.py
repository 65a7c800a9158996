"""The server's part: federated averaging of three hospitals in NVIDIA FLARE's simulator."""

import argparse
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from three_hospitals.task import RECORDS, Net


def main() -> None:
    parser = argparse.ArgumentParser(description="Three hospitals in the simulator.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workspace", default="runs/nvflare", help="folder of the simulator")
    options = parser.parse_args()
    recipe = FedAvgRecipe(
        name="three-hospitals",
        model=Net(),
        min_clients=len(RECORDS),
        num_rounds=options.rounds,
        train_script=str(Path(__file__).with_name("hospital_client.py")),
    )
    recipe.execute(SimEnv(num_clients=len(RECORDS), workspace_root=options.workspace))


if __name__ == "__main__":
    main()
