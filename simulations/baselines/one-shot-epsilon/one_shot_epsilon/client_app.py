"""The worker: each node trains its share of the clients and adds its share of the canaries."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_epe.flower import worker_app
from one_shot_epsilon.server_app import task_of

app = ClientApp()


@app.query()
@app.train()
def answer(message: Message, context: Context) -> Message:
    """Hand the message to the worker of the task that the run's settings name."""
    return worker_app(task_of(context.run_config))(message, context)
