"""A cache of the most recently used values, safe for use by several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """Keeps the `max_items` most recently used values.

    If two threads ask for the same missing key, one makes the value and the other waits for it.
    `on_evict` is called with key and value after a value was removed.
    """

    def __init__(
        self, max_items: int, on_evict: Callable[[_K, _V], None] | None = None
    ) -> None:
        self._max_items, self._on_evict = max_items, on_evict
        self._items: OrderedDict[_K, _V] = OrderedDict()
        self._key_locks: dict[_K, threading.Lock] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: _K) -> bool:
        with self._lock:
            return key in self._items

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """Return the value of `key`; call `make` if it is not in the cache."""
        with self._lock:
            if (found := self._items.get(key)) is not None:
                self._items.move_to_end(key)
                return found
            # One lock per key: making a value may take a request, and other keys must not wait for
            # it.
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            with self._lock:
                # Another thread may have made the value while this one waited for the lock.
                if (found := self._items.get(key)) is not None:
                    return found
            value = make()
            evicted = self._add(key, value)
        # Outside of all locks, so the callback may use the cache.
        if self._on_evict is not None:
            for old_key, old_value in evicted:
                self._on_evict(old_key, old_value)
        return value

    def _add(self, key: _K, value: _V) -> list[tuple[_K, _V]]:
        """Store a value and return the items that had to be removed for it."""
        evicted: list[tuple[_K, _V]] = []
        with self._lock:
            self._items[key] = value
            # Threads that wait for this lock find the value when they get it.
            self._key_locks.pop(key, None)
            while len(self._items) > self._max_items:
                evicted.append(self._items.popitem(last=False))
        return evicted
