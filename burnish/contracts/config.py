"""The RunConfig tree: everything a run can be told, one section a stage.

The text under a field is its documentation: `burnish run --help`, `docs/` and `burnish plan` print it.
"""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from burnish.contracts.algorithm import CollapseConfig, UpdateConfig
from burnish.contracts.campaign import CampaignConfig, StartConfig
from burnish.contracts.cost import CostConfig
from burnish.contracts.execution import ExecuteConfig
from burnish.contracts.sampling import RolloutConfig
from burnish.contracts.section import Section

SCHEMA_VERSION = 1


class LoraConfig(Section):
    rank: int = Field(0, ge=0)
    """Rank of the adapters; only they are trained then. 0: all weights are."""
    alpha: float = Field(16.0, gt=0)
    """Adapters are scaled by alpha / rank."""
    targets: list[str] = Field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"], min_length=1)
    """Linear layers that get an adapter, by the last part of their name; `all-linear` for every one but the head."""
    serve: Literal["merged", "adapter"] = "merged"
    """How the sampler applies them: folded into the weights, or beside them (vLLM)."""


class ModelConfig(Section):
    path: str = "smollm2-135m-instruct"
    """Base model: a packaged name (smollm2-135m-instruct), `char` for a tiny character-level model made from
    scratch, a Hugging Face id, or a local folder."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type of the forward pass. Master weights and optimizer state are always float32."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention implementation handed to transformers."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model files. Off: model files are not trusted."""
    layers: int = Field(2, ge=1)
    """`char` only: number of layers."""
    width: int = Field(64, ge=16)
    """`char` only: hidden width."""
    lora: LoraConfig = Field(default_factory=LoraConfig)
    """Low-rank adapters."""


class TaskConfig(Section):
    source: str
    """Where prompts come from: `sums`, `reasoning_gym:NAME`, `code`, or `jsonl:PATH`."""
    name: str = ""
    """Name in metrics and reports. Empty: the source."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the source, e.g. `{max_operand: 9}`."""
    train_size: int = Field(256, ge=1)
    """Number of training prompts."""
    eval_size: int = Field(64, ge=0)
    """Number of held-out prompts; none of them is ever trained on."""
    sft_size: int = Field(0, ge=0)
    """Number of demonstrations for the cold start; disjoint from the held-out prompts."""
    weight: float = Field(1.0, gt=0)
    """Share of this task's prompts in a round, relative to the other tasks."""

    @property
    def title(self) -> str:
        return self.name or self.source


class SftConfig(Section):
    enabled: bool = True
    """Train on demonstrations before RL. Off: the base model is the first policy."""
    data: str | None = None
    """A jsonl of `messages` or `prompt`/`response` rows. Empty: the tasks' own demonstrations."""
    epochs: int = Field(1, ge=1)
    """Passes over the demonstrations."""
    learning_rate: float = Field(1e-5, gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay after warm-up, to `final_lr_ratio` of the peak."""
    warmup_ratio: float = Field(0.05, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    final_lr_ratio: float = Field(0.1, ge=0, le=1)
    """Learning rate of the last step over the peak."""
    batch_size: int = Field(32, ge=1)
    """Sequences in an optimizer step."""
    token_budget: int = Field(4096, ge=16)
    """Padded tokens in a micro-batch; a memory limit that does not change the result."""
    max_length: int = Field(1024, ge=8)
    """Longer demonstrations are left out and counted, never cut."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradient clipping."""
    validation_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of the demonstrations held back to decide when to stop."""
    patience: int = Field(2, ge=1)
    """Stop after this many validation passes (one an epoch) without a better loss, and keep the best weights."""


class ScorerConfig(Section):
    name: str
    """`exact`, `math`, `reasoning_gym`, `code`, `format` or `length`."""
    weight: float = 1.0
    """Factor in the weighted sum. 0: computed and shown, not trained on."""
    gate: bool = False
    """A score of 0 here makes the fused reward 0, whatever the others say."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the scorer."""


class RewardConfig(Section):
    scorers: list[ScorerConfig] = Field(default_factory=list)
    """Components of the reward. Empty: the scorer that fits each prompt's verifier, weight 1."""
    clip: float | None = Field(None, gt=0)
    """The fused reward is clipped to [-clip, clip]."""
    verifier_timeout_s: float = Field(5.0, gt=0)
    """Limit of one verifier call in its worker process; beyond it the score is missing, not 0."""
    overlong_buffer: int = Field(0, ge=0)
    """Soft overlong penalty (DAPO): tokens before the limit over which it grows from 0 to -1. 0: off."""


class LogprobConfig(Section):
    token_budget: int = Field(4096, ge=16)
    """Padded tokens in a forward pass; a memory limit that does not change the result."""
    chunk_tokens: int = Field(512, ge=16)
    """Response tokens whose logits exist at once."""
    ratio_bounds: tuple[float, float] = (0.9, 1.1)
    """Sampler-to-trainer ratios outside are counted in the mismatch figures."""


class EvaluateConfig(Section):
    samples: int = Field(8, ge=1)
    """Completions of each held-out prompt."""
    k: list[int] = Field(default_factory=lambda: [1, 8])
    """pass@k is reported for each k; none may exceed `samples`."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature in evaluation."""
    max_prompts: int = Field(64, ge=1)
    """Held-out prompts per task."""
    bootstrap: int = Field(2000, ge=100)
    """Resamples behind each confidence interval."""
    skip: list[Literal["before", "after"]] = Field(default_factory=list)
    """Evaluations that are left out."""

    @field_validator("k")
    @classmethod
    def _positive(cls, value: list[int]) -> list[int]:
        if not value or min(value) < 1:
            raise ValueError("every k must be at least 1, and at least one k is needed")
        return sorted(set(value))

    @model_validator(mode="after")
    def _enough_samples(self) -> "EvaluateConfig":
        if max(self.k) > self.samples:
            raise ValueError(f"k={max(self.k)} needs evaluate.samples >= {max(self.k)}, got {self.samples}")
        return self


class RuntimeConfig(Section):
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where torch stages compute. auto: cuda when there is one."""
    threads: int = Field(0, ge=0)
    """CPU threads of a torch stage. 0: one per core."""
    processes: int = Field(0, ge=0)
    """Data-parallel processes of sft and update (torchrun, FSDP2). 0: one per GPU, one without a GPU."""


class TrackConfig(Section):
    experiment: str = "burnish"
    """MLflow experiment."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the MLflow run."""


class ReportConfig(Section):
    rollouts_per_round: int = Field(64, ge=0)
    """Rollouts of each round kept in the browser of the HTML report."""


class RunConfig(Section):
    """Everything a run can be told."""

    schema_version: Literal[1] = 1
    """Version of this file's layout."""
    name: str = Field("run", pattern=r"^[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?$")
    """Name of the run: lower-case letters, digits and dashes. Same name and settings continue the same run."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of everything random."""
    rounds: int = Field(4, ge=0)
    """Rounds of rollout and update unrolled in this run."""
    max_staleness: int = Field(0, ge=0)
    """Rounds by which the sampling policy may lag the trained one. 0: on-policy."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The base model."""
    tasks: list[TaskConfig] = Field(default_factory=lambda: [TaskConfig(source="sums", sft_size=32)], min_length=1)
    """What is trained on and evaluated."""
    sft: SftConfig = Field(default_factory=SftConfig)
    """Cold start."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Sampling."""
    execute: ExecuteConfig = Field(default_factory=ExecuteConfig)
    """Running model-written code."""
    reward: RewardConfig = Field(default_factory=RewardConfig)
    """Scoring."""
    logprob: LogprobConfig = Field(default_factory=LogprobConfig)
    """Recomputing logprobs with the trainer's model."""
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    """The policy update."""
    collapse: CollapseConfig = Field(default_factory=CollapseConfig)
    """Noticing a collapse, and what happens then."""
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    """Held-out evaluation."""
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    """Device and threads."""
    track: TrackConfig = Field(default_factory=TrackConfig)
    """MLflow."""
    report: ReportConfig = Field(default_factory=ReportConfig)
    """The HTML report."""
    cost: CostConfig = Field(default_factory=CostConfig)
    """Prices and the run's budget."""
    start: StartConfig = Field(default_factory=StartConfig)
    """Going on from an earlier run."""
    campaign: CampaignConfig = Field(default_factory=CampaignConfig)
    """Chunk after chunk of rounds."""

    @property
    def last_round(self) -> int:
        """Number of the run's last round."""
        return self.start.round + self.rounds

    @field_validator("tasks")
    @classmethod
    def _distinct_titles(cls, value: list[TaskConfig]) -> list[TaskConfig]:
        titles = [task.title for task in value]
        repeated = sorted({title for title in titles if titles.count(title) > 1})
        if repeated:
            raise ValueError(f"two tasks are called {repeated[0]!r}; give one of them another `name`")
        return value

    @property
    def execute_shards(self) -> int:
        """Pods that share the execution of a round."""
        return self.rollout.shards if self.execute.sharded else 1

    def view(self, sections: tuple[str, ...]) -> "RunConfig":
        """This configuration with only `sections` readable (seed, rounds and the like are sections too).

        A stage's result is remembered under the sections it declares, so reading any other one would make
        a remembered result wrong: it raises AttributeError instead.
        """
        kept = self.model_copy()
        for field in type(self).model_fields:
            if field not in sections:
                del kept.__dict__[field]
        return kept
