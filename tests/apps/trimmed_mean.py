"""FedTrimmedAvg: the highest and the lowest replies are left out, in each coordinate.

It takes the arrays out of the replies while it works.
"""

from app_case import AppCase
from digits_task import EVERYBODY, NODES, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedTrimmedAvg
from scipy.stats import trim_mean

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


CASE = AppCase(
    strategy=lambda folder: FedTrimmedAvg(**EVERYBODY, beta=0.2),
    client_app=app,
    robust=lambda replies: trim_mean(replies, 0.2),
    growth=NODES**0.5,
)
