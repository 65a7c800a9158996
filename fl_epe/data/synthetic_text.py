"""Synthetic StackOverflow: sentences by user, which are drawn from a seed when they are read.

Like the real data (figures of TFF), it has 342,477 users with at least 100 sentences and 397 on
average, few of them with very many; 10,000 words with Zipf frequencies, and a few percent of words
that are not in the vocabulary; and sentences of 1 to 20 and more words. Unlike the real data, each
word has four likely successors: three are the same in all sentences, and one depends on the
sentence's topic. Each user prefers some topics. So a model learns first the frequencies of words,
and then pairs of words.

    >>> examples(seed=0, user=7, most=5).shape
    (5, 21)

The time that this takes is in ``docs/notes/data-sets.md``.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import Integers
from fl_epe.data.examples import (
    BOS,
    EOS,
    MAX_WORDS,
    NUM_WORDS,
    OOV,
    PAD,
    VOCABULARY,
)
from fl_epe.seeding import generator

Ids = NDArray[np.uint16]

USERS = 342_477

# The number of sentences of a user is 100 plus a log-normal number of mean 297.
_MIN_SENTENCES = 100
_LOG_SENTENCES_MEAN = 4.70
_LOG_SENTENCES_STD = 1.41
_MAX_FURTHER_SENTENCES = 1e6
_TOPICS = 16
_TOPIC_CONCENTRATION = 0.1  # of the Dirichlet distribution of a user's topics
_COMMON_WORDS = 50  # that have the same frequency in every topic
_ZIPF_EXPONENT = 1.0
_OOV_SHARE = 0.04  # of words that are not in the vocabulary
# A word is one of the previous word's four successors (slots 0 to 3), or is drawn independently of
# that word (slot 4). The probabilities of the slots are these numbers divided by 256.
_INDEPENDENT = 4
_SLOTS = np.repeat(np.arange(5, dtype=np.uint8), [90, 42, 20, 56, 48])
# The number of words of a sentence is log-normal, with median 11.
_LOG_WORDS_MEAN = 2.4
_LOG_WORDS_STD = 0.6
# The frequencies of words are multiples of 1 / _DRAWS.
_DRAWS = 1 << 17


def examples(seed: int, user: int, most: int = 0) -> Ids:
    """The examples of a user.

    Args:
        seed: the seed of the whole data set.
        user: the user's number, any integer >= 0.
        most: the largest number of examples; 0 for all examples of the user.

    Returns:
        Ids of shape (sentences, 21), see `fl_epe.data.examples`.
    """
    random = generator(seed, 1, user)
    return _write(seed, random, _count(random, most))


def size(seed: int, user: int, most: int = 0) -> int:
    """The number of a user's `examples`, without drawing them."""
    return _count(generator(seed, 1, user), most)


def _count(random: np.random.Generator, most: int) -> int:
    """The number of sentences of a new user, at most ``most`` (0: no limit)."""
    further = np.exp(
        _LOG_SENTENCES_MEAN + _LOG_SENTENCES_STD * random.standard_normal()
    )
    count = _MIN_SENTENCES + int(min(further, _MAX_FURTHER_SENTENCES))
    if most:
        return min(count, most)
    return count


def held_out(seed: int, count: int) -> Ids:
    """``count`` examples of further users, one of each user."""
    random = generator(seed, 2)
    return np.concatenate([_write(seed, random, 1) for _ in range(count)])


def _write(seed: int, random: np.random.Generator, count: int) -> Ids:
    """``count`` sentences of a new user, shape (count, 21)."""
    successors, frequent = _language(seed)
    shares = random.dirichlet(np.full(_TOPICS, _TOPIC_CONCENTRATION))
    topics = np.searchsorted(np.cumsum(shares[:-1]), random.random(count))
    log_lengths = random.normal(_LOG_WORDS_MEAN, _LOG_WORDS_STD, count)
    lengths = np.exp(log_lengths).astype(np.int64) + 1
    slots = _SLOTS[random.integers(0, 256, (MAX_WORDS, count), np.uint8)]
    independent = _of_topic(
        frequent[random.integers(0, _DRAWS, (MAX_WORDS, count))], topics
    )
    ids = np.empty((MAX_WORDS + 1, count), np.uint16)
    ids[0] = BOS
    for place in range(MAX_WORDS):
        likely = successors[topics, ids[place], slots[place]]
        ids[place + 1] = np.where(
            slots[place] == _INDEPENDENT, independent[place], likely
        )
    places = np.arange(1, MAX_WORDS + 1)[:, None]
    ids[1:][places == lengths + 1] = EOS
    ids[1:][places > lengths + 1] = PAD
    return np.ascontiguousarray(ids.T)


@functools.lru_cache(maxsize=2)
def _language(seed: int) -> tuple[Ids, Ids]:
    """The words of a data set.

    Returns:
        The successors, shape (topics, ids, slots), and a list of 2^17 words, in which each word is
        as frequent as in sentences.
    """
    random = generator(seed, 0)
    weights = np.arange(1, NUM_WORDS + 1) ** -_ZIPF_EXPONENT
    weights *= (1 - _OOV_SHARE) / weights.sum()
    limits = np.rint(np.cumsum(np.append(0, weights)) * _DRAWS).astype(np.int64)
    words = np.repeat(np.arange(1, NUM_WORDS + 1), np.diff(limits))
    unknown = np.full(_DRAWS - len(words), OOV)
    frequent = np.append(words, unknown).astype(np.uint16)
    # The slot of independent words has successors too, which are not used.
    shape = (_TOPICS, VOCABULARY, len(np.unique(_SLOTS)))
    common = frequent[random.integers(0, _DRAWS, (1, *shape[1:]))]
    successors = np.broadcast_to(common, shape).copy()
    # The last successor depends on the topic.
    by_topic = frequent[random.integers(0, _DRAWS, shape[:2])].T
    successors[:, :, _INDEPENDENT - 1] = _of_topic(
        by_topic, np.arange(_TOPICS)
    ).T
    return successors, frequent


def _of_topic(words: Ids, topics: Integers) -> Ids:
    """The words in a topic: rare words are shifted cyclically; topics are the last axis."""
    rare = NUM_WORDS - _COMMON_WORDS
    shift = topics * (rare // _TOPICS)
    shifted = (words - _COMMON_WORDS - 1 + shift) % rare + _COMMON_WORDS + 1
    is_rare = (words > _COMMON_WORDS) & (words <= NUM_WORDS)
    return np.where(is_rare, shifted, words).astype(np.uint16)
