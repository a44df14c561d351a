"""The policy on a Ray cluster: workers, rollout servers and weight sync, built from one veRL configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import psutil
import ray
import torch
from omegaconf import DictConfig
from ray.actor import ActorHandle
from verl.checkpoint_engine.base import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from verl_ext.batch import Sample, check_samples, plan_mini_batches, plan_update, rows_per_rank
from verl_ext.losses import AuxiliaryLoss, TokenTerm
from verl_ext.platform_cpu import assert_platform
from verl_ext.run_folder import (
    end_processes,
    note_shared_memory,
    process_trees,
    remove_shared_memory,
    shared_memory,
    unused_buckets,
)
from verl_ext.task_router import task_router
from verl_ext.verl_config import check_verl_config, load_verl_config, resolved
from verl_ext.vllm_servers import check_bucket, local_processes, server_actors, stop_engines, use_receiver
from verl_ext.worker_group import ANSWER_S, RAY_KILLS_S, ClusterError, check_rank_files, gpu_pool, release
from verl_ext.workers import AgentActorRolloutRefWorker, UpdateReport

__all__ = ["ClusterError", "ClusterTimeout", "PolicyCluster", "UpdateReport", "WeightSyncError", "load_verl_config"]

T = TypeVar("T")


class ClusterTimeout(ClusterError, TimeoutError):
    """A phase did not end in its time."""


class WeightSyncError(ClusterError):
    """The rollout servers did not get the new weights; they may hold old or partial ones."""


class PolicyCluster:
    """One policy, trained and served on the same devices.

    Servers and training take turns on the devices: ``log_probs``, ``update`` and ``save`` put the servers to sleep,
    ``sync_weights`` and ``wake`` bring them back with current weights. With ``rollout.free_cache_engine=False`` the
    servers stay awake. No request may be in flight while the servers sleep.

    Args:
        config: veRL's ``ppo_trainer`` configuration (``load_verl_config`` or the trainer's own); copied, not changed.
        token_terms: extra per-token terms of the policy loss.
        auxiliary_loss: the loss of auxiliary samples.
        sync_deadline_s: how long a weight sync may take where the call sets no limit of its own, in seconds.
        routing_slack: requests of a task go to one server while it has at most so many more in flight than the least
            busy one (``TaskRouter``); None leaves the choice to veRL, as ``rollout.full_determinism`` does.

    Raises:
        ValueError: the configuration cannot work; nothing has been started.
    """

    def __init__(
        self,
        config: DictConfig,
        *,
        token_terms: Sequence[TokenTerm] = (),
        auxiliary_loss: AuxiliaryLoss | None = None,
        sync_deadline_s: float = 600.0,
        routing_slack: int | None = None,
    ) -> None:
        self.config = resolved(config)
        actor = self.config.actor_rollout_ref.actor
        if actor.kl_loss_coef == 0:
            actor.use_kl_loss = False
        check_verl_config(self.config)
        check_bucket(self.config)
        use_receiver(self.config)
        self._sync_deadline_s = sync_deadline_s
        by_hash = self.config.actor_rollout_ref.rollout.full_determinism
        self._router = None if routing_slack is None or by_hash else task_router(routing_slack)
        self.has_reference = bool(actor.use_kl_loss)
        self._token_terms = tuple(token_terms)
        self._auxiliary_loss = auxiliary_loss
        self._version = 0
        self._asleep = False
        self._pool: RayResourcePool | None = None
        # A worker group gets the worker's methods at run time, hence Any.
        self._workers: Any = None
        self._servers: LLMServerManager | None = None
        self._processes: list[psutil.Process] = []
        self._control_service: psutil.Process | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start workers and servers and give the servers the first weights. Ray must be running.

        Raises:
            ClusterError: Ray is not running or has too few (logical) GPUs, or the servers did not get the weights.
            PlatformError: this process or a worker is not on ``trainer.device``.
        """
        trainer = self.config.trainer
        assert_platform(trainer.device)
        if not ray.is_initialized():
            raise ClusterError("Ray is not running: call ray.init first")
        needed, present = trainer.n_gpus_per_node * trainer.nnodes, int(ray.cluster_resources().get("GPU", 0))
        if trainer.device in ("cpu", "cuda") and present < needed:
            raise ClusterError(
                f"trainer.n_gpus_per_node * trainer.nnodes = {needed} but Ray has {present} GPUs"
                + (f": call ray.init(num_gpus={needed})" if trainer.device == "cpu" else "")
            )
        services = psutil.Process().children()
        self._control_service = next((process for process in services if process.name() == "gcs_server"), None)
        try:
            self._start()
        except BaseException:
            self.shutdown()
            raise

    def _start(self) -> None:
        trainer = self.config.trainer
        self._pool = gpu_pool(trainer)
        worker = RayClassWithInitArgs(
            cls=ray.remote(AgentActorRolloutRefWorker),
            config=self.config.actor_rollout_ref,
            role="actor_rollout_ref" if self.has_reference else "actor_rollout",
            device=trainer.device,
            token_terms=self._token_terms,
            auxiliary_loss=self._auxiliary_loss,
            # Half, so that the worker that waits says what is wrong before the driver gives up.
            answer_deadline_s=self._sync_deadline_s / 2,
        )
        self._workers = RayWorkerGroup(self._pool, worker, device_name=trainer.device)
        self._workers.init_model()
        self._dp_ranks: list[int] = self._workers.data_parallel_rank()
        self._servers = LLMServerManager.create(
            config=self.config, worker_group=self._workers, load_balancer_cls=self._router
        )
        self._sync = CheckpointEngineManager(
            config=omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout.checkpoint_engine),
            actor_wg=self._workers,
            replicas=self._servers.get_replicas(),
        )
        self._processes = local_processes([*self._server_actors(), *self._workers.workers], ANSWER_S)
        note_shared_memory(process_trees(self._processes))
        self.sleep()
        self.sync_weights(0)

    def shutdown(self) -> None:
        """Stop workers and servers and give their resources back; Ray itself goes on. Safe to call twice.

        Nothing of them is left on this machine: no process, no shared memory, no socket.
        """
        # A worker that waits in a failed sync answers no question, so all is looked up before anything ends.
        processes = process_trees(self._processes)
        memory = shared_memory(processes)
        if ray.is_initialized() and self._ray_answers():
            workers = list(self._workers.workers) if self._workers is not None else []
            balancers = [self._servers.global_load_balancer] if self._servers is not None else []
            servers = server_actors(self.config.actor_rollout_ref.rollout.name)
            for worker in workers:  # first: no further transfer may begin
                ray.kill(worker)
            stop_engines(servers)
            for actor in [*servers, *balancers]:
                ray.kill(actor)
            release(self._pool)
        end_processes(processes, RAY_KILLS_S)
        remove_shared_memory(memory | unused_buckets())
        self._processes = []
        self._pool = self._workers = self._servers = None

    def _ray_answers(self) -> bool:
        """False once a Ray that this process started is gone (a signal to the whole process group): calls would hang."""
        service = self._control_service
        return service is None or (service.is_running() and service.status() != psutil.STATUS_ZOMBIE)

    # ------------------------------------------------------------------ serving

    def client(self) -> LLMServerClient:
        """veRL's client of the rollout servers: picklable, ``await client.generate(request_id, prompt_ids=…, …)``."""
        if self._servers is None:
            raise ClusterError("the rollout servers are not running: call start() first")
        return self._servers.get_client()

    def sleep(self) -> None:
        """Free the servers' device memory. Does nothing where they do not share memory with training."""
        if self._shares_memory and not self._asleep:
            self._sync.sleep_replicas()
            self._asleep = True

    def wake(self, timeout_s: float | None = None) -> None:
        """Make sleeping servers ready again. Sleep may drop the weights, so they are sent anew; see ``sync_weights``."""
        if self._asleep:
            self.sync_weights(self._version, timeout_s)

    def check_servers(self, timeout_s: float) -> None:
        """Ask every rollout server for a sign of life.

        Raises:
            ClusterError: one has died, or did not answer within ``timeout_s`` seconds.
        """
        self._started()
        servers = enumerate(self._server_actors())
        calls: dict[Any, int] = {server.__ray_call__.remote(_nothing): index for index, server in servers}
        _, silent = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)
        for call in silent:
            raise ClusterTimeout(f"rollout server {calls[call]} did not answer within {timeout_s:g} s")
        for call, index in calls.items():
            try:
                ray.get(call)
            except ray.exceptions.RayError as error:
                raise ClusterError(f"rollout server {index} has died") from error

    def abort_requests(self) -> None:
        """End every request in flight and take no new one until the next sync. A server that does not answer is left alone."""
        self._started()
        calls: list[Any] = [server.abort_all_requests.remote() for server in self._server_actors()]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S)

    def sync_weights(self, version: int, timeout_s: float | None = None) -> None:
        """Give the servers the current weights, labelled ``version``, and drop what they cached under the old ones.

        Raises:
            WeightSyncError: it failed or did not end within ``timeout_s`` seconds (default: ``sync_deadline_s``).
        """
        self._started()
        timeout_s = self._sync_deadline_s if timeout_s is None else timeout_s

        def synchronise() -> None:
            self.sleep()
            if self._sync.backend == "naive":
                self._send_weights(version)
            else:
                self._sync.update_weights(version)
            ray.get([server.clear_kv_cache.remote() for server in self._server_actors()])

        try:
            _within(timeout_s, f"sync of weights {version}", synchronise)
        except Exception as error:
            raise WeightSyncError(f"the rollout servers did not get weights {version}: {error}") from error
        self._asleep, self._version = False, version

    def _send_weights(self, version: int) -> None:
        """As veRL does, but the first rank that fails ends it: the others may wait for that one without an end."""
        pending = list(self._started().update_weights(global_steps=version, mode="naive"))
        while pending:
            done, pending = ray.wait(pending, num_returns=1)
            ray.get(done)

    @property
    def _shares_memory(self) -> bool:
        return bool(self.config.actor_rollout_ref.rollout.free_cache_engine)

    # ------------------------------------------------------------------ training

    def log_probs(
        self,
        pairs: Sequence[tuple[np.ndarray, np.ndarray]],
        role: Literal["actor", "reference"] = "actor",
        temperature: float = 1.0,
    ) -> list[np.ndarray]:
        """Log-probabilities of responses, in evaluation mode, without gradients.

        Args:
            pairs: (prompt ids [P], response ids [R]) each.
            role: the current policy or the frozen reference.
            temperature: divides the logits.

        Returns:
            float32 [R] per pair.
        """
        workers = self._started()
        if role == "reference" and not self.has_reference:
            raise ClusterError("there is no reference policy: actor.use_kl_loss is off or actor.kl_loss_coef is 0")
        if not pairs:
            return []
        self.sleep()
        models = self.config.actor_rollout_ref
        settings = models.ref if role == "reference" else models.rollout
        samples = [Sample(prompt, response) for prompt, response in pairs]
        check_samples(samples, "sequence", self._budget(settings.log_prob_max_token_len_per_gpu))
        plan = plan_mini_batches([sample.length for sample in samples], len(samples), self._dp_size, seed=0)[0]
        shares = self._to_workers(rows_per_rank(samples, plan))
        count = len(shares)
        outputs = workers.score(shares, [temperature] * count, [role] * count)
        results: list[np.ndarray] = [np.empty(0, np.float32)] * len(samples)
        for dp_rank, output in zip(self._dp_ranks, outputs, strict=True):
            if output is not None:
                for index, values in zip(plan[dp_rank], output, strict=False):
                    results[index] = values
        return results

    def update(
        self,
        samples: Sequence[Sample],
        auxiliary_samples: Sequence[Sample] = (),
        *,
        mini_batch_size: int,
        seed: int,
        temperature: float = 1.0,
    ) -> UpdateReport:
        """One pass of PPO mini-batches; the auxiliary samples' gradient joins the last optimizer step.

        Args:
            samples: with token fields ``old_log_probs``, ``advantages``, ``ref_log_prob`` where there is a reference
                policy, and the fields of the token terms.
            auxiliary_samples: with the fields of the auxiliary loss.
            mini_batch_size: samples (turns) per optimizer step over all ranks, at most.
            seed: decides which samples share a mini-batch.
            temperature: the one the responses were sampled at.

        Raises:
            ValueError: a sample no worker could handle; nothing has been updated.
        """
        workers = self._started()
        self.sleep()
        budget = self._budget(self.config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu)
        check_samples(samples, "PPO sample", budget)
        check_samples(auxiliary_samples, "auxiliary sample", budget)
        self._check_fields(samples, auxiliary_samples)
        updates = plan_update(
            samples,
            auxiliary_samples,
            mini_batch_size=mini_batch_size,
            dp=self._dp_size,
            seed=seed,
            temperature=temperature,
        )
        return workers.update_policy(self._to_workers(updates))[0]

    def _check_fields(self, samples: Sequence[Sample], auxiliary_samples: Sequence[Sample]) -> None:
        wanted = {"old_log_probs", "advantages"} | ({"ref_log_prob"} if self.has_reference else set())
        wanted |= {name for term in self._token_terms if term.coefficient != 0 for name in term.fields}
        _require(wanted, samples, "PPO samples")
        if auxiliary_samples and self._auxiliary_loss is None:
            raise ValueError("there are auxiliary samples but PolicyCluster was built without an auxiliary_loss")
        if self._auxiliary_loss is not None:
            _require(set(self._auxiliary_loss.fields), auxiliary_samples, "auxiliary samples")

    # ------------------------------------------------------------------ state

    def save(self, directory: Path | str) -> None:
        """Write model, optimizer, scheduler and every rank's random state; ``directory`` is seen by all nodes."""
        workers = self._started()
        self.sleep()
        workers.save_checkpoint(str(directory))

    def load(self, directory: Path | str) -> None:
        """Read what ``save`` wrote at the same world size. Call ``sync_weights`` afterwards.

        Raises:
            ClusterError: a rank's file is missing.
        """
        workers = self._started()
        check_rank_files(Path(directory), workers.world_size)
        self.sleep()
        workers.load_checkpoint(str(directory))

    def export_state(self) -> dict[str, torch.Tensor]:
        """The full weights in the training precision, on the host; for tests and small models."""
        return self._started().export_state()[0]

    def memory(self) -> dict[str, int]:
        """Resident bytes of the driver, every training worker and every rollout server, each with its child processes."""
        self._started()
        actors = {f"worker_{rank}": actor for rank, actor in enumerate(self._workers.workers)}
        actors |= {f"server_{index}": actor for index, actor in enumerate(self._server_actors())}
        sizes = ray.get([actor.__ray_call__.remote(_resident_bytes) for actor in actors.values()])
        return {"driver": psutil.Process().memory_info().rss} | dict(zip(actors, sizes, strict=True))

    # ------------------------------------------------------------------ parts

    def _server_actors(self) -> list[ActorHandle]:
        if self._servers is None:
            return []
        return [server for replica in self._servers.get_replicas() for server in replica.servers]

    def _started(self) -> Any:
        if self._workers is None:
            raise ClusterError("the cluster is not running: call start() first")
        if not self._ray_answers():
            raise ClusterError("Ray's processes have ended, perhaps by a signal to the whole process group")
        return self._workers

    @property
    def _dp_size(self) -> int:
        return max(self._dp_ranks) + 1

    def _to_workers(self, shares: list[T]) -> list[T]:
        """Shares of the data-parallel ranks, one for every worker (workers of a sequence-parallel group share one)."""
        return [shares[rank] for rank in self._dp_ranks]

    def _budget(self, tokens_per_gpu: int) -> int | None:
        """The longest sequence that fits; None with micro-batches of a fixed size."""
        actor = self.config.actor_rollout_ref.actor
        return tokens_per_gpu * actor.ulysses_sequence_parallel_size if actor.use_dynamic_bsz else None


def _require(names: set[str], samples: Sequence[Sample], what: str) -> None:
    if samples and (missing := names - samples[0].tokens.keys() - samples[0].scalars.keys()):
        raise ValueError(f"the {what} lack the field {min(missing)!r}")


def _nothing(_actor: Any) -> None:
    pass


def _resident_bytes(_actor: Any) -> int:
    process = psutil.Process()
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def _within(timeout_s: float | None, what: str, call: Callable[[], T]) -> T:
    """Run ``call`` in a thread and stop waiting after ``timeout_s`` seconds: Ray's waits have no common deadline."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name=what)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise ClusterTimeout(f"{what} did not end within {timeout_s:g} s")
    if failure:
        raise failure[0]
    return result[0]
