"""The cache of the most recently used values."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from loader.reading.lru_cache import LruCache


def test_the_least_recently_used_values_are_removed() -> None:
    """The callback gets them; a use makes a value recent."""
    evicted: list[tuple[int, str]] = []
    cache = LruCache[int, str](2, on_evict=lambda key, value: evicted.append((key, value)))
    for key in (1, 2, 1, 3, 1, 4):
        assert cache.get(key, lambda key=key: str(key)) == str(key)
    assert evicted == [(2, "2"), (3, "3")]
    assert [key in cache for key in (1, 2, 3, 4)] == [True, False, False, True]


def test_a_value_is_made_once_for_all_threads() -> None:
    """The others wait for the thread that makes it; other keys do not wait."""
    cache, num_made = LruCache[str, int](8), 0
    is_started, may_finish = threading.Event(), threading.Event()

    def make() -> int:
        nonlocal num_made
        num_made += 1
        is_started.set()
        assert may_finish.wait(30)
        return 7

    with ThreadPoolExecutor(4) as threads:
        values = [threads.submit(cache.get, "slow", make) for _ in range(4)]
        assert is_started.wait(30)
        assert cache.get("other", lambda: 1) == 1
        may_finish.set()
        assert [value.result() for value in values] == [7] * 4
    assert num_made == 1


def test_an_error_reaches_all_waiting_threads_and_is_not_kept() -> None:
    """The next call makes the value again, and no lock is left behind."""
    cache = LruCache[str, int](8)
    is_started, may_finish = threading.Event(), threading.Event()
    num_made = 0

    def fail() -> int:
        nonlocal num_made
        num_made += 1
        is_started.set()
        assert may_finish.wait(30)
        raise OSError("no answer")

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(cache.get, "key", fail)
        assert is_started.wait(30)
        waiting = [threads.submit(cache.get, "key", fail) for _ in range(3)]
        while len(waiting) > sum(future.running() for future in waiting):
            pass
        may_finish.set()
        for future in (first, *waiting):
            with pytest.raises(OSError, match="no answer"):
                future.result()
    assert num_made <= 4
    assert "key" not in cache
    assert cache.get("key", lambda: 5) == 5
    assert not vars(cache)["_pending"]


def test_a_closed_cache_keeps_nothing() -> None:
    """Also no value that a thread was making when it was closed."""
    evicted: list[tuple[int, str]] = []
    cache = LruCache[int, str](8, on_evict=lambda key, value: evicted.append((key, value)))
    cache.get(1, lambda: "one")

    def make_while_closing() -> str:
        cache.close()
        return "two"

    assert cache.get(2, make_while_closing) == "two"
    assert evicted == [(1, "one"), (2, "two")]
    assert 1 not in cache
    assert 2 not in cache
