"""A cache of the most recently used values, safe for use by several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """Keeps the `max_items` most recently used values.

    If several threads ask for the same missing key, one makes the value and the others wait for
    it. If making it fails, all of them get the error, and the next one that asks tries again.
    `on_evict` is called with key and value after a value was removed.
    """

    def __init__(
        self, max_items: int, on_evict: Callable[[_K, _V], None] | None = None
    ) -> None:
        self._max_items, self._on_evict = max_items, on_evict
        self._items: OrderedDict[_K, _V] = OrderedDict()
        # The values that some thread is making.
        self._pending: dict[_K, Future[_V]] = {}
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
            is_first = key not in self._pending
            pending = self._pending.setdefault(key, Future())
        return self._make(key, make, pending) if is_first else pending.result()

    def close(self) -> None:
        """Remove all values, and keep none from now on."""
        with self._lock:
            removed = list(self._items.items())
            self._items.clear()
            # A thread may still be making a value.
            self._max_items = 0
        self._report(removed)

    def _make(self, key: _K, make: Callable[[], _V], pending: Future[_V]) -> _V:
        """Make a value without holding a lock, since it may take a request."""
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            # After the removal: a thread that asks from now on must not get this error.
            pending.set_exception(error)
            raise
        evicted = self._add(key, value)
        pending.set_result(value)
        self._report(evicted)
        return value

    def _add(self, key: _K, value: _V) -> list[tuple[_K, _V]]:
        """Store a value and return the items that had to be removed for it."""
        evicted: list[tuple[_K, _V]] = []
        with self._lock:
            self._items[key] = value
            del self._pending[key]
            while len(self._items) > self._max_items:
                evicted.append(self._items.popitem(last=False))
        return evicted

    def _report(self, removed: list[tuple[_K, _V]]) -> None:
        # Outside of the lock, so the callback may use the cache.
        if self._on_evict is not None:
            for key, value in removed:
                self._on_evict(key, value)
