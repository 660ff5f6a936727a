"""One pass over all StagedData and all workloads that ask for some, from what stands on the objects."""

import logging
import time
from collections.abc import Awaitable, Callable

from kopt.cluster.api import ApiError, Conflict, NotFound
from kopt.cluster.held import HoldError
from kopt.controllers.staging.downloads import Downloads
from kopt.controllers.staging.given import Cluster, Progresses, Reads, Silent, StagingSettings, Tell, Writes
from kopt.controllers.staging.holding import Holding
from kopt.controllers.staging.scene import scene_of
from kopt.controllers.staging.views import HOLDER

_LOG = logging.getLogger(__name__)
_SOON_S, _IDLE_S, _AFTER_TROUBLE_S, _UNSETTLED_S = 0.5, 30.0, 5.0, 1.0


class Reconciler:
    """``step`` does what there is to do; ``troubles`` counts what failed and is tried again."""

    def __init__(self, cluster: Cluster, reads: Reads, writes: Writes, settings: StagingSettings, tell: Tell,
                 progress: Progresses | None = None, clock: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._cluster, self._settings, self._clock = cluster, settings, clock
        self._progress = progress or Silent()
        self._downloads = Downloads(cluster, reads, writes, settings, tell, clock)
        self._holding = Holding(cluster, reads, writes, settings, tell, clock)
        self.troubles = 0

    async def step(self) -> float:
        """In how many seconds to look again, should nothing change before. Raises Deposed."""
        running = {one.uid for one in self._cluster.jobs() if not one.run.ended}
        self._progress.follow([one for one in self._cluster.pods() if one.job_uid in running])
        scene = scene_of(self._cluster, self._progress, self._settings, self._clock())
        again_s = [_IDLE_S] + ([_UNSETTLED_S] if scene.unsettled else [])
        # Who waits is held first: that is what must not be late.
        for workload in scene.workloads:
            again_s.append(await self._tried(workload.name, self._holding.look_at(workload, scene)))
        scene = scene_of(self._cluster, self._progress, self._settings, self._clock())
        for kueue in (one for several in scene.kueue.values() for one in several if one.holder == HOLDER):
            again_s.append(await self._tried(f"Workload {'/'.join(kueue.key)}", self._holding.give_back(kueue, scene)))
        self._holding.forget(scene)
        self._downloads.begin_pass(scene)
        for view in sorted(scene.views.values(), key=lambda one: (one.data.created_at_s, one.data.key)):
            name = f"StagedData {'/'.join(view.data.key)}"
            again_s.append(await self._tried(name, self._downloads.look_at(view, scene)))
        return min(again_s)

    async def _tried(self, what: str, looking: Awaitable[float | None]) -> float:
        """One that fails does not keep the others."""
        try:
            again_s = await looking
        except HoldError as error:
            _LOG.info("%s is not held: %s", what, error)
            return _IDLE_S
        except (Conflict, NotFound) as error:
            _LOG.info("%s has changed meanwhile: %s", what, error)
            return _SOON_S
        except ApiError as error:
            _LOG.warning("%s: %s", what, error)
            self.troubles += 1
            return _AFTER_TROUBLE_S
        except (KeyError, TypeError, ValueError, AttributeError):
            # What people and other controllers wrote; one object must not cost all the others their turn.
            _LOG.exception("%s is not understood", what)
            self.troubles += 1
            return _IDLE_S
        return _IDLE_S if again_s is None else again_s
