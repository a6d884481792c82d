"""What checks compute once a session and share between ports: results kept in memory, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gaudi_validate.ports.pool import ModelPool

T = TypeVar("T")
MIB = 1024**2


class Kept(Generic[T]):
    """Values by key for each pool; the least recently used go when a pool's exceed ``limit`` bytes.

    The newest value stays whatever its size. Not thread-safe, as pools are not.
    """

    def __init__(self, limit: int, nbytes: Callable[[T], int]) -> None:
        self._limit, self._nbytes = limit, nbytes
        self._pools: WeakKeyDictionary[ModelPool, OrderedDict[Hashable, T]] = WeakKeyDictionary()

    def get(self, pool: ModelPool, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value under ``key``, computed when it is not there."""
        values = self._pools.setdefault(pool, OrderedDict())
        if key not in values:
            values[key] = compute()
        values.move_to_end(key)
        while len(values) > 1 and sum(map(self._nbytes, values.values())) > self._limit:
            values.popitem(last=False)
        return values[key]
