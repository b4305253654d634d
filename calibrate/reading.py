"""Models that read one sequence token by token, and the laws that they read from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrate.live.placement import TORCH, WorkerSpec, available_cores

if TYPE_CHECKING:
    from calibrate.recording import RecordingJob


def token_law(logits: Any, temperature: float, top_p: float) -> tuple[Any, Any]:
    """The law that a model's token is sampled from, and its ranking of all tokens.

    softmax(logits / temperature), cut to the smallest set of most likely tokens whose mass reaches
    `top_p` and renormalised; among equals the lower id goes first.  At temperature 0 the law is that of
    temperature 1, uncut: what the log-probabilities of a greedy trace mean.

    Args:
        logits: [V], a torch tensor.
        temperature: At least 0.
        top_p: Mass kept, in (0, 1].

    Returns:
        [V] log-probabilities in double precision, minus infinity for what was cut; [V] ids, most likely
        first, nothing left out.
    """
    import torch

    logits = logits.double()
    # Ties go to the lower id, as argmax does; a stable sort keeps ranks consistent with it.
    order = torch.sort(logits, descending=True, stable=True).indices
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    if top_p < 1.0:
        mass = logprobs[order].exp().cumsum(dim=-1)
        kept = 1 + int((mass[:-1] < top_p).sum())
        logprobs[order[kept:]] = -torch.inf
        logprobs = logprobs - torch.log(mass[kept - 1])
    return logprobs, order


class Reader:
    """A model that reads one sequence token by token.

    Attributes:
        logprobs: [V] of the next token, at the sampling setting.
        order: [V] its ids, most likely first.
    """

    def __init__(self, model: Any, prompt: list[int], job: RecordingJob) -> None:
        from transformers import DynamicCache

        self.model = model
        self.job = job
        self.cache = DynamicCache(config=model.config)
        self.read(prompt)

    def read(self, ids: list[int]) -> None:
        """Feed tokens."""
        self.logprobs, self.order = self._law_after(ids)

    def peek(self, token: int) -> float:
        """Highest log-probability after `token`, without keeping it."""
        logprobs, order = self._law_after([token])
        self.cache.crop(-1)
        return float(logprobs[order[0]])

    def _law_after(self, ids: list[int]) -> tuple[Any, Any]:
        import torch

        device = self.model.device
        output = self.model(
            torch.tensor([ids], device=device), past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        return token_law(output.logits[0, -1].cpu(), self.job.temperature, self.job.top_p)


class RunnerReader(Reader):
    """The same for a draft that another backend runs: what is recorded is what will draft."""

    def __init__(self, runner: Any, prompt: list[int], job: RecordingJob) -> None:
        self.runner = runner
        self.job = job
        runner.reset(0)
        self.read(prompt)

    def peek(self, token: int) -> float:
        """As `Reader.peek`."""
        logprobs, order = self._law_after([token])
        self.runner.rollback(0, len(self.runner.held(0)) - 1)
        return float(logprobs[order[0]])

    def _law_after(self, ids: list[int]) -> tuple[Any, Any]:
        logits = self.runner.forward([0], [ids], last_only=True)
        return token_law(logits[0, 0].cpu(), self.job.temperature, self.job.top_p)


def open_draft(job: RecordingJob) -> Any:
    """What runs the draft where that is not torch; None where it is."""
    if job.draft_backend == TORCH:
        return None
    from calibrate.live.loading import open_runner

    cores = available_cores()[: job.threads]
    return open_runner(
        WorkerSpec(
            "draft",
            job.draft,
            cores,
            job.precision,
            "draft",
            backend=job.draft_backend,
            trust_remote_code=job.trust_remote_code,
        )
    )
