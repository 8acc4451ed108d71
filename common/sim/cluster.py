"""A whole simulated cluster: cells, workers, a gateway that spreads requests over the cells, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from common.core.cluster import WorkerSpec
from common.core.ids import RequestId, Role, WorkerId, WorkerLife
from common.core.params import DEFAULT_CONFIDENCE_THRESHOLD, ConfidenceThreshold, SamplingParams
from common.core.work import RequestSpec
from common.errors import Reason
from common.sim.agenda import Agenda
from common.sim.cell import SimCell
from common.sim.config import SimConfig
from common.sim.data_plane import DataPlane
from common.sim.draws import mix
from common.sim.effect_digest import EffectDigest
from common.sim.faults import Fault, FaultKind
from common.sim.network import Lane, Network
from common.sim.records import Recorder
from common.sim.reveal import RevealModel
from common.sim.worker import SimWorker
from common.sim.world import World
from common.workload.workload import RequestShape

MODEL_ID = "simulated"
_STRATEGY = ConfidenceThreshold(DEFAULT_CONFIDENCE_THRESHOLD)
_STEPS_PER_REPORT = 20_000

OnProgress = Callable[[float, int], None]
"""Told now and then: virtual seconds, requests ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """What a run left: the books, the workers by role, when the last request ended, and the hash of every effect."""

    config: SimConfig
    recorder: Recorder
    roles: dict[WorkerId, Role]
    span_s: float
    effects: int
    digest: str


class SimCluster:
    """Built once, run once."""

    def __init__(self, config: SimConfig, requests: Sequence[RequestShape]) -> None:
        self._config = config
        self._requests = requests
        self._agenda = Agenda()
        network_settings = replace(
            config.network,
            duplicate_rate=max(config.network.duplicate_rate, config.faults.duplicate_rate),
            reorder_rate=max(config.network.reorder_rate, config.faults.reorder_rate),
        )
        self._network = Network(self._agenda, network_settings, seed=config.seed)
        self._world = World(
            agenda=self._agenda,
            network=self._network,
            data_plane=DataPlane(self._agenda, self._network, config.kv_link),
            cost=config.cost,
            reveal=RevealModel(config.tokens_per_step),
            recorder=Recorder(),
            digest=EffectDigest(),
        )
        self._cells = [self._make_cell(index) for index in range(config.cells)]
        self._homes: dict[RequestId, tuple[int, int]] = {}
        self._load_tokens = [0] * config.cells
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._span_s = 0.0

    def run(self, on_progress: OnProgress | None = None) -> SimResult:
        """Run until nothing is left to happen, and check that the idle cluster holds nothing."""
        for index, shape in enumerate(self._requests):
            self._agenda.at(shape.arrival_s, self._arrive, index, shape)
        self._schedule_faults()
        steps = 0
        while self._agenda.step():
            steps += 1
            if on_progress is not None and steps % _STEPS_PER_REPORT == 0:
                on_progress(self._agenda.now, self._world.recorder.ended)
        self._check_idle()
        return SimResult(
            config=self._config,
            recorder=self._world.recorder,
            roles={worker.life.worker_id: worker.core.view().role for worker in self._workers()},
            span_s=self._span_s,
            effects=self._world.digest.effects,
            digest=self._world.digest.hexdigest(),
        )

    # Requests

    def _arrive(self, index: int, shape: RequestShape) -> None:
        request_id = RequestId(f"r{index:07d}")
        self._world.recorder.arrived(request_id, shape)
        spec = self._spec(request_id, index, shape)
        cell = min(range(len(self._cells)), key=self._load_tokens.__getitem__)
        self._homes[request_id] = cell, spec.canvas_tokens
        self._load_tokens[cell] += spec.canvas_tokens
        self._network.send(Lane(), None, self._cells[cell].submit, spec)

    def _ended(self, request_id: RequestId, reason: Reason | None) -> None:
        self._world.recorder.ended_with(request_id, reason, self._agenda.now)
        self._span_s = self._agenda.now
        home = self._homes.pop(request_id, None)
        if home is not None:
            cell, tokens = home
            self._load_tokens[cell] -= tokens

    def _spec(self, request_id: RequestId, index: int, shape: RequestShape) -> RequestSpec:
        prompt = self._prompts.setdefault(shape.prompt_tokens, (0,) * shape.prompt_tokens)
        return RequestSpec(
            request_id=request_id,
            prompt_token_ids=prompt,
            max_tokens=shape.output_tokens,
            block_length_tokens=self._config.block_length_tokens,
            cache_mode=self._config.cache_mode,
            sampling=SamplingParams(strategy=_STRATEGY, temperature=0.0, seed=mix(self._config.seed, index)),
            ignore_eos=True,
        )

    # Workers

    def _make_cell(self, index: int) -> SimCell:
        cell = SimCell(name=f"cell-{index:03d}", config=self._config.scheduler, world=self._world, on_end=self._ended)
        numbers = dict.fromkeys(Role, 0)
        for role in self._config.roles:
            worker_id = WorkerId(f"c{index:03d}-{role.value}-{numbers[role]:04d}")
            numbers[role] += 1
            self._start_worker(cell, role, WorkerLife(worker_id, 1))
        return cell

    def _start_worker(self, cell: SimCell, role: Role, life: WorkerLife) -> None:
        config = self._config
        worker_config = replace(config.worker, role=role)
        spec = WorkerSpec(
            life=life,
            role=role,
            address=life.worker_id,
            kv_transport="simulated",
            kv_address=life.worker_id,
            layout_fingerprint=MODEL_ID,
            model_id=MODEL_ID,
            pages_total=worker_config.pages_total,
            page_size_tokens=worker_config.page_size_tokens,
            max_canvas_tokens=config.max_canvas_tokens,
            token_budget_tokens=worker_config.token_budget_tokens,
            max_batch_size=worker_config.max_batch_size,
        )
        worker = SimWorker(spec=spec, config=worker_config, world=self._world, overseer=cell)
        cell.workers[life.worker_id] = worker
        self._world.data_plane.join(worker)
        worker.begin_life(spec)

    def _workers(self) -> list[SimWorker]:
        return [worker for cell in self._cells for worker in cell.workers.values()]

    # Faults

    def _schedule_faults(self) -> None:
        names = [worker.life.worker_id for worker in self._workers()]
        last_s = max((shape.arrival_s for shape in self._requests), default=0.0)
        for fault in self._config.faults.plan(names, span_s=last_s, seed=self._config.seed):
            action = {FaultKind.CRASH: self._crash, FaultKind.HANG: self._hang, FaultKind.SLOW: self._slow}[fault.kind]
            self._agenda.at(fault.at_s, action, fault)

    def _find(self, worker_id: WorkerId) -> tuple[SimCell, SimWorker]:
        return next((cell, cell.workers[worker_id]) for cell in self._cells if worker_id in cell.workers)

    def _crash(self, fault: Fault) -> None:
        """Connections break at once, calls and heartbeat alike; another process takes over later."""
        cell, worker = self._find(fault.worker_id)
        if not worker.alive:
            return
        for call in worker.crash():
            worker.break_call(call)
        self._world.data_plane.lose(worker.life)
        self._network.send(Lane(), fault.worker_id, cell.lose, worker.life)
        self._agenda.after(fault.lasts_s, self._restart, cell, worker)

    def _restart(self, cell: SimCell, worker: SimWorker) -> None:
        life = WorkerLife(worker.life.worker_id, worker.life.incarnation + 1)
        self._start_worker(cell, worker.spec.role, life)

    def _hang(self, fault: Fault) -> None:
        """The process stands still; a scheduler that hears nothing for too long gives it up."""
        cell, worker = self._find(fault.worker_id)
        if not worker.alive:
            return
        worker.frozen_until_s = max(worker.frozen_until_s, self._agenda.now + fault.lasts_s)
        if fault.lasts_s > self._config.heartbeat_timeout_s:
            self._agenda.after(self._config.heartbeat_timeout_s, cell.lose, worker.life)

    def _slow(self, fault: Fault) -> None:
        self._network.slow[fault.worker_id] = self._config.faults.slow_factor
        self._agenda.after(fault.lasts_s, self._recover_link, fault.worker_id)

    def _recover_link(self, worker_id: WorkerId) -> None:
        self._network.slow.pop(worker_id, None)

    def _check_idle(self) -> None:
        for cell in self._cells:
            cell.core.check_conservation()
        for worker in self._workers():
            if worker.alive:
                worker.core.check_conservation()
