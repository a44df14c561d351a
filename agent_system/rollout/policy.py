"""The policy behind a rollout server: token ids in, a ``Generation`` out, with bounded retries of lost requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ray.exceptions import RayActorError
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from agent_system.rollout.prompting import Prompter
from agent_system.rollout.types import Generation, LLMClient, Sampling, TokenOutput

_ABORTED = {"abort", "aborted"}
_CUT = {"length"}


class PolicyFault(Exception):
    """The rollout server gave no answer after all attempts. The episode is lost; the message says why."""


class _Aborted(Exception):
    """The server gave a generation up half-way (it was paused, or ran out of cache)."""


@dataclass(frozen=True)
class Policy:
    """Generates with bounded retries.

    Only a lost server, a broken connection and an aborted generation are tried again, with the same seed: whatever
    else goes wrong is a programming error and propagates.

    Attributes:
        client: anything with veRL's ``LLMServerClient.generate``.
        prompter: decodes responses and knows the stop tokens.
        attempts: tries per generation, at least 1.
        backoff_s: wait before the second try, in seconds; doubled for each further one, at most 8 s.
    """

    client: LLMClient
    prompter: Prompter
    attempts: int = 4
    backoff_s: float = 0.5

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, request_id: str) -> Generation:
        """One answer to ``prompt_ids`` (int32 [P]). Requests of one ``request_id`` go to one server (prefix cache).

        Raises:
            PolicyFault: no answer after ``attempts`` tries.
        """
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(self.attempts),
                wait=wait_exponential(multiplier=self.backoff_s, max=8),
                retry=retry_if_exception(_is_transient),
                reraise=True,
            ):
                with attempt:
                    output = await self._request(prompt_ids, sampling, request_id)
        except Exception as error:
            if not _is_transient(error):
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise PolicyFault(f"no answer from the rollout server in {self.attempts} attempts ({reason})") from error
        return self._generation(prompt_ids, output)

    async def _request(self, prompt_ids: np.ndarray, sampling: Sampling, request_id: str) -> TokenOutput:
        output = await self.client.generate(
            request_id, prompt_ids=prompt_ids.tolist(), sampling_params=sampling.params()
        )
        if output.stop_reason in _ABORTED or not output.token_ids:
            raise _Aborted(f"generation of {request_id} ended with {output.stop_reason!r}")
        return output

    def _generation(self, prompt_ids: np.ndarray, output: TokenOutput) -> Generation:
        response_ids = np.asarray(output.token_ids, dtype=np.int32)
        if output.log_probs is None or len(output.log_probs) != len(response_ids):
            raise ValueError("the rollout server returned no log-probability for each response token; enable logprobs")
        # veRL's vLLM server says "completed" also for a response cut by the token limit, so the last token decides.
        finished = output.stop_reason not in _CUT and int(response_ids[-1]) in self.prompter.stop_token_ids
        version = output.extra_fields.get("global_steps")
        return Generation(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            log_probs=np.asarray(output.log_probs, dtype=np.float32),
            text=self.prompter.decode(output.token_ids),
            finished=finished,
            weights_version=-1 if version is None else int(version),
        )


def _is_transient(error: BaseException) -> bool:
    # A Ray task error also has its cause's type, so a ConnectionError raised on the server is seen as one here.
    return isinstance(error, ConnectionError | RayActorError | _Aborted)
