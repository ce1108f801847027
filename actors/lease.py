"""The lease between processes: this worker's beat, and its eye on those of others.

A dead worker's lock says so at once. Only for one that lives and does nothing, stopped or swapped out, is there the
lease: each worker stores a beat four times in it, and whose beat stands still for so long may be robbed. Who may write
is for the fence alone to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from actors.directory import Directory
from actors.outage import Outage
from actors.supervised import SupervisedActor
from actors.worker import Worker
from stores import StoreError
from stores.schema import SCHEMA

logger = logging.getLogger("perdure")


class Lease(SupervisedActor):
    """Beats on a thread of its own, so that a body which keeps the interpreter busy costs no task its owner.

    Guaranteed: before the lease holds again after it had run out, the tasks that are hosted here are compared with the
    store, and those that were taken meanwhile are lost. Not guaranteed: a take-over while the frozen one keeps the
    store itself locked; nobody else can renew then.

    It sees by its beat that a newer perdure has brought the store up to date, too: then this worker starts nothing
    more, as one that closes, and what runs here ends or is left to the newer ones.
    """

    def __init__(self, worker: Worker, directory: Directory, created: Callable[[Self], None]) -> None:
        super().__init__("lease", worker.report)
        self._worker = worker
        self._recorder = worker.log.recorder
        self._tenure = worker.tenure
        self._directory = directory
        created(self)

    def live(self) -> None:
        """Beat until nothing is written any more, then take the beat away.

        In an outage it never waits longer than from beat to beat: others may be back earlier, and watch.
        """
        interval = self._tenure.interval
        outage = Outage("and when the lease runs out no body starts any more", "the lease is renewed", interval)
        pause = 0.0
        while not self._worker.over.wait(pause):
            began = time.monotonic()
            try:
                self._retire_if_outdated()  # first: what a newer perdure has changed may be in the way of the rest
                self._beat(began)
                self._watch()
                self._worker.look_after()
            except StoreError as error:
                pause = 0.0 if self._worker.over.is_set() else outage.met(error)
            else:
                outage.over()
                pause = max(0.0, began + interval - time.monotonic())
        with suppress(StoreError):
            self._recorder.delete_beat(self._worker.id)

    def _beat(self, began: float) -> None:
        """Store the next beat, and let the lease hold from the moment at which that began."""
        self._tenure.count += 1
        self._recorder.save_beat(self._worker.id, self._tenure.count, self._tenure.lease)
        had_run_out = not self._tenure.holds()
        if had_run_out:
            self._worker.unbegun.clear()  # they may be another's by now: who begins with one has to claim it anew
            self._directory.compare(self._worker.log)
        self._tenure.renew(began)
        if had_run_out:
            self._worker.wake.set()

    def _retire_if_outdated(self) -> None:
        """Start nothing more in a store whose schema is newer than this process; the lease goes on for what runs."""
        found = self._recorder.schema_version()
        if found <= SCHEMA or self._worker.stopping.is_set():
            return
        logger.error(
            "worker %s claims nothing more: a newer perdure has brought the store to schema %d, this one knows up to"
            " %d; what runs here ends at its next step, and goes on with newer workers: start this one again with them",
            *(self._worker.id, found, SCHEMA),
        )
        self._worker.stopping.set()
        self._worker.wake.set()
        for actor in self._directory.hosted().values():
            if actor is not None and actor.activation is not None:
                actor.activation.wake()

    def _watch(self) -> None:
        """Look at the beats of the others, and take away those of the dead."""
        asked = time.monotonic()
        beats = self._recorder.select_beats()
        if self._tenure.observe(beats, asked, time.monotonic()):
            self._worker.wake.set()
        for worker in beats.keys() - {self._worker.id}:
            if not self._worker.log.store.workers.is_alive(worker):
                self._recorder.delete_beat(worker)
