"""A store: everything durable, behind one object."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import NoReturn, Self

from eventsourcing.persistence import InfrastructureFactory, TrackingRecorder
from eventsourcing.utils import Environment

from stores.recorder import TaskRecorder
from stores.workers import Workers


class Store(InfrastructureFactory[TrackingRecorder]):
    """An opened store, and the factory that an eventsourcing `Application` takes its recorder from.

    `url`: where it is, absolute, so that another process can open the same. `recorder`: log and index.
    `workers`: who is alive. Use it as a context manager, or call `close()`.
    """

    def __init__(self, url: str, recorder: TaskRecorder, workers: Workers) -> None:
        super().__init__(Environment("perdure"))  # empty: what the process environment says is not ours
        self.url = url
        self.recorder = recorder
        self.workers = workers

    def application_recorder(self) -> TaskRecorder:
        """Give the one recorder of this store."""
        return self.recorder

    def reach(self, point: str, **facts: object) -> None:
        """Say that a named point is reached: nothing here; a store for crash tests may end the process."""

    def __enter__(self) -> Self:
        """Give the store itself; it is open already."""
        return super().__enter__()

    def hurry(self, *, on: bool) -> None:
        """Let nothing wait for another process any more, while `on`: who has to leave cannot. Does nothing here."""

    def listen(self, tell: Callable[[Collection[str] | None], object]) -> Callable[[], None]:  # noqa: ARG002
        """Have `tell` called when another process has news, on some thread; gives what ends that. It has to be quick.

        It gets the ids of the tasks, or None where it may be any. A hint only: not everything is told, and nothing at
        all by a store whose database tells nothing, as here.
        """
        return lambda: None

    def prepare_to_write(self) -> None:
        """Do what makes the commits to come cheaper; a worker calls it once. A courtesy, and nothing here."""

    def damages(self) -> Iterator[str]:
        """Look through all that the store is made of, and say what is damaged below its rows. Nothing here."""
        yield from ()

    def empty_journal(self) -> bool:
        """Take what was deleted out of the database's own journal too; False where readers kept it from that.

        Nothing to do here.
        """
        return True

    def vacuum(self) -> None:
        """Delete orphans, and make the store anew of what is in it: the text of what was deleted is in it nowhere.

        It takes its time, and as much room again meanwhile; others can read, and wait to write. Raises
        StoreUnavailableError where somebody is in the way for too long; then nothing is lost, and it can be called
        again.
        """
        self.recorder.delete_orphans()

    @abstractmethod
    def close(self) -> None:
        """Release the worker locks and all that is open. May be called again; later use is an error."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self.close()

    def aggregate_recorder(self, purpose: str = "events") -> NoReturn:
        """Refuse: tasks have no snapshots."""
        raise NotImplementedError("perdure's stores have one recorder, application_recorder(); tasks have no snapshots")

    def tracking_recorder(self, tracking_recorder_class: type[TrackingRecorder] | None = None) -> NoReturn:
        """Refuse: nothing here tails the log by a number."""
        raise NotImplementedError("perdure's stores track no positions; ask the task index what has changed")

    def process_recorder(self) -> NoReturn:
        """Refuse: nothing here tails the log by a number."""
        raise NotImplementedError("perdure's stores track no positions; ask the task index what has changed")
