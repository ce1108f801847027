"""The contract of a store as tests: whoever writes a store of their own runs it, and so does perdure with its own.

    # test_my_store.py
    from pathlib import Path

    from my_store import MyStore
    from stores.contract import LastingStoreContract, Maker, stores_agree

    def fresh(folder: Path) -> MyStore:
        return MyStore(folder / "tasks")  # nothing in it

    def again(store: MyStore) -> MyStore:
        return MyStore(store.path)  # the same, as another process opens it

    class TestMyStore(LastingStoreContract):
        def fresh(self, folder: Path) -> MyStore:
            return fresh(folder)

        def again(self, store: MyStore) -> MyStore:
            return again(store)

    def test_my_store_does_what_a_few_dictionaries_do():
        stores_agree({"mine": Maker(fresh, again)})

A store that is gone with its process has no `again`, and subclasses `StoreContract`. A store on a server finds it by a
fixture with `autouse` in the subclass, which keeps on `self` what `fresh` and `again` need.

Guarantee: a store that passes keeps to the docstrings of `TaskRecorder` and `Workers`, as far as one process can see.
Not guaranteed: what only a kill or a power cut shows; a lock that the death of a process frees; how much is read to
answer. Test these with your own means.

Needs pytest and Hypothesis: `pip install 'perdure[testing]'`. Nothing else in `stores` imports this package.
"""

# ruff: noqa: E402  what is below has to be named before it is imported

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as error:
    raise ImportError("stores.contract needs pytest and Hypothesis: pip install 'perdure[testing]'") from error

_PARTS = ("kit", "appends", "submitted", "reads", "beside", "hygiene", "threads", "lasting", "machine")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))  # so that a failure shows both sides

from stores.contract.appends import Appends, Births
from stores.contract.beside import Beats, Emissions, Heartbeats, WorkersOfAStore
from stores.contract.hygiene import Hygiene
from stores.contract.kit import Suite
from stores.contract.lasting import Lasting
from stores.contract.machine import Maker, stores_agree
from stores.contract.reads import Due, Entries, Events, Index, Text
from stores.contract.submitted import Submitted
from stores.contract.threads import Closing, Threads

__all__ = ["LastingStoreContract", "Maker", "StoreContract", "stores_agree"]


class StoreContract(
    Appends,
    Births,
    Submitted,
    Index,
    Events,
    Entries,
    Due,
    Text,
    Heartbeats,
    Beats,
    Emissions,
    WorkersOfAStore,
    Hygiene,
    Threads,
    Closing,
    Suite,
):
    """What every store guarantees, as tests. Subclass it, say how to make a fresh store, and let pytest run it."""


class LastingStoreContract(StoreContract, Lasting):
    """The same, and what a store guarantees that several may open at once, and that is still there after its close."""
