"""What makes one RL algorithm differ from another: the `update` section, its orthogonal choices in a section each.

Fields that are empty (None) here are filled from the preset that `update.preset` names (presets.py).
"""

from typing import Literal

from pydantic import Field, model_validator

from burnish.contracts.section import Section

Estimator = Literal["group", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gae", "opo", "maxrl", "gdpo"]
Surrogate = Literal["clip", "cispo", "sapo", "reinforce", "gmpo", "dppo_tv"]
Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"
]
CorrectionMode = Literal["none", "token_tis", "sequence_tis", "token_mask", "sequence_mask", "geometric_mask"]
KlEstimator = Literal["k1", "k2", "k3", "k3+"]


class AdvantageConfig(Section):
    """From rewards to one number a token that says how much better than expected it was."""

    estimator: Estimator | None = None
    """`group`: reward minus the group's mean (GRPO, Dr. GRPO). `rloo`: minus the mean of the others. `reinforce_pp`:
    discounted token returns, whitened over the batch; `reinforce_pp_baseline`: group-centred, then whitened. `gae`:
    from a critic (PPO, VAPO). `opo`: minus the length-weighted mean. `maxrl`: centred and divided by the group's mean.
    `gdpo`: every reward component normalised in its group before they are added."""
    std: Literal["group", "batch", "none"] | None = None
    """Standard deviation that divides the centred reward, for `group`."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of a token's reward by its distance, for `reinforce_pp` and `gae`."""
    gae_lambda: float | None = Field(None, ge=0, le=1)
    """GAE's trade of bias for variance in the policy's advantages."""
    value_lambda: float | None = Field(None, ge=0, le=1)
    """The same for the returns that the critic learns. 1: plain returns."""
    length_adaptive: float | None = Field(None, ge=0)
    """VAPO: policy lambda 1 - 1 / (this x response length). 0: off, `gae_lambda` holds."""
    whiten: bool | None = None
    """Bring token advantages to mean 0 and standard deviation 1 over the batch, for `gae`."""


class LossConfig(Section):
    """From advantages and ratios to the policy loss."""

    surrogate: Surrogate | None = None
    """`clip`: PPO's clipped ratio. `cispo`: clipped ratio as a constant weight of the logprob. `sapo`: a sigmoid gate
    in place of the clip. `reinforce`: no ratio. `gmpo`: geometric mean of clipped token ratios. `dppo_tv`: tokens
    whose probability moved too far are masked."""
    ratio: Literal["token", "sequence"] | None = None
    """Level of the importance ratio. `sequence`: its geometric mean over the response (GSPO)."""
    clip_low: float | None = Field(None, ge=0)
    """Lower clip range: the ratio is kept above 1 - clip_low. For dppo_tv, the probability that may be lost."""
    clip_high: float | None = Field(None, ge=0)
    """Upper clip range: the ratio is kept below 1 + clip_high. For dppo_tv, the probability that may be gained."""
    dual_clip: float | None = Field(None, ge=0)
    """Bound of the loss of a token with negative advantage: -A x this, above 1. 0: off."""
    sapo_tau_positive: float = Field(1.0, gt=0)
    """SAPO's temperature for positive advantages."""
    sapo_tau_negative: float = Field(1.05, gt=0)
    """SAPO's temperature for negative advantages."""
    aggregation: Aggregation | None = None
    """How token losses become one number; denominators are those of the whole optimizer step. `token-mean`: one mean
    over all tokens. `seq-mean-token-mean`: a mean a response, then over responses. `seq-mean-token-sum`: a sum a
    response, mean over responses. `seq-mean-token-sum-norm`: the same over the completion limit. `prompt-mean`: a
    token mean a prompt, then over prompts."""


class KlConfig(Section):
    """Holding the policy near its reference."""

    coef: float | None = Field(None, ge=0)
    """Weight of the KL term. 0: no reference pass. 0.01 is a place to start."""
    place: Literal["loss", "reward"] | None = None
    """In the loss, or taken off the reward of each token before advantages are computed."""
    estimator: KlEstimator | None = None
    """k1 in the reward; k2, k3 or k3+ (value of k3, gradient of k2) in the loss."""
    off_policy: bool = False
    """Multiply the loss term by the token's ratio, which makes its gradient right away from the sampling policy."""
    schedule: Literal["constant", "linear", "cosine", "adaptive"] = "constant"
    """How the weight changes over the run. `adaptive`: a controller that steers the measured KL to `target`."""
    final_ratio: float = Field(0.0, ge=0)
    """Weight at the last step over `coef`, for linear and cosine."""
    target: float = Field(0.1, gt=0)
    """KL per sequence token, in nats, that the adaptive controller steers to."""
    horizon: int = Field(10_000, ge=1)
    """Samples over which the adaptive controller corrects a full error."""
    refresh_interval: int = Field(0, ge=0)
    """Rounds after which the current policy becomes the reference. 0: the first policy stays it."""


class CorrectionConfig(Section):
    """Weights for the difference between the sampler's and the trainer's probabilities: w = exp(old - rollout)."""

    mode: CorrectionMode | None = None
    """`token_tis`: min(w, cap) a token. `sequence_tis`: the product over the response, capped. `token_mask`: w inside
    [low, high], 0 outside (IcePop, MIS). `sequence_mask`: the product where it is at most high, else the whole
    response 0. `geometric_mask`: w, and responses whose geometric mean leaves [low, high] are 0. What gets weight 0
    stays in the denominator."""
    cap: float | None = Field(None, gt=0)
    """Cap of the truncated modes. Empty: 2."""
    low: float | None = Field(None, ge=0)
    """Lower bound of the masking modes. Empty: 0.5 for token_mask, 0.999 for geometric_mask."""
    high: float | None = Field(None, gt=0)
    """Upper bound of the masking modes. Empty: 5 for token_mask, 3 for sequence_mask, 1.002 for geometric_mask."""
    veto: float = Field(0.0, ge=0, lt=1)
    """A response with any token weight below this gets weight 0. 0: off; 1e-4 is a common choice."""
    reject_k3: float | None = Field(None, gt=0)
    """A response whose mean k3 divergence between sampler and trainer exceeds this gets weight 0."""
    reject_off_policy: float | None = Field(None, gt=0)
    """A response with negative advantage whose mean (old - current) logprob exceeds this gets weight 0."""
    normalize: bool = False
    """Divide the weights by their mean over the optimizer step."""
    bypass: bool = False
    """Take the sampler's logprobs as the old ones: the clip then also holds the mismatch. No weights are applied."""


class FilterConfig(Section):
    """Samples that are not trained on. What a filter leaves out is in no denominator."""

    zero_variance: bool | None = None
    """Leave out groups whose rewards are equal, before the forward pass."""
    truncated: bool | None = None
    """Leave out completions that hit the length limit."""
    length_quantile: float | None = Field(None, gt=0, lt=1)
    """Leave out completions longer than this quantile of the round's lengths."""
    length_mad: float | None = Field(None, gt=0)
    """Leave out completions more than this many median absolute deviations longer than the median."""
    repetition: float | None = Field(None, gt=0, le=1)
    """Leave out completions in which more than this share of the n-grams occurred before."""
    repetition_ngram: int = Field(4, ge=1)
    """Tokens of those n-grams."""
    malformed: Literal["keep", "drop", "penalize"] = "keep"
    """Completions whose thinking tags are wrong (the `format` scorer's think): trained as they are, left out, or given
    the advantage `malformed_advantage`."""
    malformed_advantage: float = Field(-1.0, lt=0)
    """Advantage of a malformed completion under `penalize`."""


class PositiveConfig(Section):
    """Making rare successes count: without it, many negative samples can drown the few positive ones."""

    advantage_weight: float = Field(1.0, gt=0)
    """Factor on positive advantages."""
    negative_keep: float = Field(1.0, ge=0, le=1)
    """Share of the samples with a negative advantage that is trained on, chosen by seed inside each group."""
    negative_token_floor: float = Field(0.0, ge=0, lt=1)
    """Tokens of negative samples that the policy gives less than this probability are not trained: pushing down what
    is already unlikely moves the rest of the distribution most."""
    nll_weight: float | None = Field(None, ge=0)
    """Weight of a plain likelihood loss on samples with positive advantage (VAPO). 0: off."""
    warn_share: float = Field(0.8, gt=0, le=1)
    """Warn when negative samples make up more than this share of the gradient norm."""


class CriticConfig(Section):
    """The value model, for `advantage.estimator: gae`."""

    init: str = "policy"
    """`policy`: the policy after the cold start with a new value head. Else a Hugging Face id or a folder, for example
    of a reward model, whose head is taken over when it has one output."""
    shared: bool = False
    """One backbone for policy and critic; the value loss then moves the policy's layers too."""
    learning_rate: float = Field(1e-5, ge=0)
    """Peak learning rate of the critic."""
    warmup_rounds: int = Field(0, ge=0)
    """First rounds in which only the critic learns."""
    epochs: int = Field(1, ge=1)
    """Passes of the critic over each mini-batch."""
    clip: float = Field(0.2, ge=0)
    """Value clipping: a value may move this far from the old one before its loss stops caring. 0: off."""
    coef: float = Field(0.1, gt=0)
    """Weight of the value loss where the backbone is shared."""
    score_clip: float | None = Field(None, gt=0)
    """The scalar reward is clipped to +-this before it is placed on the last token."""


Preset = Literal[
    "grpo", "dr_grpo", "dapo", "rloo", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "opo", "maxrl", "gdpo",
    "gspo", "cispo", "sapo", "gmpo", "dppo_tv", "decoupled_ppo", "ppo", "vapo",
]  # fmt: skip


class UpdateConfig(Section):
    preset: Preset = "grpo"
    """Published algorithm whose choices fill the fields below that are left empty (docs/algorithms.md)."""
    steps: int = Field(1, ge=1)
    """Optimizer steps over a round's rollouts (the sync interval)."""
    epochs: int = Field(1, ge=1)
    """Passes over a round's rollouts, each of `steps` optimizer steps."""
    learning_rate: float = Field(1e-6, ge=0)
    """Peak learning rate. 0 is allowed: nothing may change then, and ratios must be 1."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps, counted over the whole run, in which the learning rate rises from 0."""
    schedule: Literal["constant", "cosine", "linear", "kl_adaptive"] = "constant"
    """Decay after warm-up over the whole run. `kl_adaptive`: halved when a round's steps move the policy by more than
    twice `kl_adaptive_target`, doubled below half of it."""
    kl_adaptive_target: float = Field(0.01, gt=0)
    """KL between the policy before and after a round, nats a token, that `kl_adaptive` steers to."""
    final_lr_ratio: float = Field(0.1, ge=0, le=1)
    """Learning rate of the last step over the peak, for cosine and linear."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW moments."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradient clipping."""
    token_budget: int = Field(4096, ge=16)
    """Padded tokens in a micro-batch; a memory limit that does not change the result."""
    share_prompt: bool = True
    """Run a group's prompt once for all its completions. Same result, fewer tokens."""
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)
    """From rewards to advantages."""
    loss: LossConfig = Field(default_factory=LossConfig)
    """From advantages and ratios to the policy loss."""
    kl: KlConfig = Field(default_factory=KlConfig)
    """Holding the policy near its reference."""
    correction: CorrectionConfig = Field(default_factory=CorrectionConfig)
    """Sampler-trainer mismatch."""
    filters: FilterConfig = Field(default_factory=FilterConfig)
    """Samples that are not trained on."""
    positive: PositiveConfig = Field(default_factory=PositiveConfig)
    """Making rare successes count."""
    critic: CriticConfig = Field(default_factory=CriticConfig)
    """The value model of PPO."""

    @property
    def needs_critic(self) -> bool:
        """Whether advantages come from a critic; known once the preset is filled in."""
        return self.advantage.estimator == "gae"

    @property
    def critic_lr_ratio(self) -> float | None:
        """The critic's learning rate over the policy's; None without a critic or where one of them is 0."""
        if not (self.needs_critic and self.learning_rate and self.critic.learning_rate):
            return None
        return self.critic.learning_rate / self.learning_rate


class CollapseConfig(Section):
    """When a run counts as collapsing, and what happens then. Thresholds are choices, not truths."""

    action: Literal["off", "warn", "stop", "rollback"] = "warn"
    """`warn`: say so. `stop`: end the run with the last good policy. `rollback`: go on from the last good policy and
    its trainer state, gentler; after `max_rollbacks` stop."""
    window: int = Field(20, ge=5)
    """Steps behind the robust z-scores."""
    patience: int = Field(3, ge=1)
    """Violations among the last `recent` steps that trip the detector."""
    recent: int = Field(5, ge=1)
    """Steps that are looked at."""
    z: float = Field(6.0, gt=0)
    """Robust z-score (median and MAD over the window) beyond which a step violates."""
    entropy_low: float = Field(0.3, gt=0, lt=1)
    """Entropy below this share of its start violates."""
    entropy_high: float = Field(3.0, gt=1)
    """Entropy above this many times its start violates."""
    mismatch_max: float = Field(0.1, gt=0)
    """Mean |old - rollout| above this violates, nats."""
    ess_min: float = Field(0.5, gt=0, lt=1)
    """Effective sample size below this violates."""
    kl_factor: float = Field(10.0, gt=1)
    """KL above this many times its baseline violates."""
    truncated_max: float = Field(0.8, gt=0, lt=1)
    """Share of truncated responses above this while the reward falls violates."""
    reward_drop: float = Field(0.5, gt=0, lt=1)
    """Reward below this share of its best moving average violates."""
    clip_max: float = Field(0.5, gt=0, le=1)
    """Share of clipped tokens above this violates."""
    lr_factor: float = Field(0.5, gt=0, le=1)
    """After a rollback the learning rate is multiplied by this."""
    clip_factor: float = Field(0.5, gt=0, le=1)
    """After a rollback the clip ranges are multiplied by this."""
    max_rollbacks: int = Field(1, ge=0)
    """Rollbacks before the run is stopped."""

    @model_validator(mode="after")
    def _patience_fits(self) -> "CollapseConfig":
        if self.patience > self.recent:
            raise ValueError(f"patience={self.patience} can never be reached within recent={self.recent} steps")
        return self
