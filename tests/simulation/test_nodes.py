"""Who holds which clients."""

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from tiny import Tiny

from fl_epe.flower import InProcessGrid, worker_app
from fl_epe.messages import pack
from fl_epe.simulation.node_registry import NodeRegistry


class TestNodes:
    def test_a_client_on_two_nodes_is_refused(self):
        app = ClientApp()

        @app.query()
        def query(message, context):
            return Message(
                RecordDict({"held": pack(clients=np.arange(19))}),
                reply_to=message,
            )

        with (
            InProcessGrid(app, 2) as grid,
            pytest.raises(
                ValueError,
                match="the clients are partitioned; node 1: client 0 is on node 2 too",
            ),
        ):
            NodeRegistry(20, 1.0).wait_for_all(grid)

    def test_nodes_that_hold_everyone_share_the_work_by_size(self):
        sizes = np.array([50, 1, 1, 1, 20, 20, 9, 1, 1, 1])
        with InProcessGrid(
            worker_app(Tiny(clients=10), everyone=True), 3
        ) as grid:
            directory = NodeRegistry(10, 1.0, lambda clients: sizes[clients])
            directory.wait_for_all(grid)
            assert directory.reachable() == 10
            shares = list(directory.share(np.arange(10), np.arange(5)))
        loads = sorted(int(sizes[clients].sum()) for _, clients, _ in shares)
        assert loads == [26, 29, 50]
        everyone = [client for _, clients, _ in shares for client in clients]
        assert sorted(everyone) == list(range(10))
        assert sorted(c for _, _, canaries in shares for c in canaries) == list(
            range(5)
        )

    def test_while_no_node_is_there_nobody_is_asked(self):
        nobody = NodeRegistry(10, 1.0)
        assert nobody.reachable() == 0
        assert not list(nobody.share(np.arange(10), np.arange(5)))

    @pytest.mark.slow
    def test_clients_that_nobody_holds_are_waited_for(self):
        with InProcessGrid(worker_app(Tiny(clients=7)), 2) as grid:
            directory = NodeRegistry(20, 0.5)
            while len(directory._clients_of) < 2:  # however slowly they answer
                list(directory.refresh(grid))
            with pytest.raises(
                TimeoutError, match=r"20 clients within 0\.5 s: 2 nodes hold 7"
            ):
                directory.wait_for_all(grid)

    def test_a_node_without_its_configuration_says_so(self):
        with InProcessGrid(worker_app(Tiny()), 1) as grid:
            next(iter(grid._contexts.values())).node_config = {}
            message = Message(RecordDict(), 1, MessageType.QUERY)
            (reply,) = grid.send_and_receive([message])
        assert "'partition-id' in the node's configuration" in str(
            reply.error.reason
        )
