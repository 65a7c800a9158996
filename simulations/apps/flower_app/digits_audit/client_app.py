"""The worker: each node trains its share of the clients and adds its share of the canaries."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_epe.flower import worker_app
from fl_epe.tasks import load_task

app = ClientApp()


@app.query()
@app.train()
def answer(message: Message, context: Context) -> Message:
    """Hand the message to the worker of the task that the run's configuration names."""
    settings = context.run_config
    task = load_task(str(settings["task"]), num_clients=int(settings["num-clients"]))
    return worker_app(task)(message, context)
