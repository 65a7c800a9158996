"""Named seeds."""

import dataclasses
import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fl_epe.config import RunConfig
from fl_epe.dp_sgd import PlainDPSGD
from fl_epe.seeding import Seeds, generator, noise_generator


def test_seeds():
    assert Seeds.derive(3) == Seeds.derive(3)
    assert len(set(dataclasses.asdict(Seeds.derive(3)).values())) == 5
    assert Seeds.derive(None) != Seeds.derive(None)
    assert (
        Seeds.derive(None).noise is None
    )  # entropy leaves no trace in records or checkpoints
    with pytest.raises(ValueError, match="seed=-4 >= 0"):
        Seeds.derive(-4)


class TestNoiseGenerator:
    def test_its_bits_are_the_ciphers(self, monkeypatch):
        """With a key from the system, the bits are those of another library's ChaCha20."""
        key = bytes(range(32))
        monkeypatch.setattr(
            secrets, "randbits", lambda bits: int.from_bytes(key, "little")
        )
        drawn = noise_generator(None, 5, 0).bit_generator.random_raw(1000)
        cipher = Cipher(
            algorithms.ChaCha20(key, bytes(16)), mode=None
        ).encryptor()
        assert drawn.astype("<u8").tobytes() == cipher.update(bytes(8000))

    def test_fresh_keys_differ(self):
        drawn = [
            noise_generator(None, 0).bit_generator.random_raw(2).tolist()
            for _ in range(4)
        ]
        assert len(set(map(tuple, drawn))) == 4

    def test_a_seed_and_an_index_repeat(self):
        def draw(seed, *index):
            return noise_generator(seed, *index).standard_normal(3).tolist()

        assert draw(7, 1, 0) == draw(7, 1, 0)
        assert (
            len(
                {
                    tuple(draw(*at))
                    for at in ((7, 1, 0), (7, 0, 1), (7, 1), (8, 1, 0))
                }
            )
            == 4
        )
        assert draw(7, 1, 0) == pytest.approx(
            [0.8810515264714712, 0.361277668952278, -0.8530359222488614],
            abs=1e-12,
        )

    def test_the_old_one_by_name(self):
        old = noise_generator(7, 1, kind="sfc64").standard_normal(3)
        assert np.array_equal(old, generator(7, 1).standard_normal(3))

    def test_it_is_the_default(self):
        assert RunConfig(clients=100).noise_generator == "chacha20"
        with pytest.raises(ValueError, match="noise_generator='mt19937'"):
            RunConfig(clients=100, noise_generator="mt19937")
        plain = PlainDPSGD(
            np.zeros(2),
            learning_rate=1.0,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=1.0,
        )
        assert type(plain._noise.bit_generator).__name__ == "ChaCha"
