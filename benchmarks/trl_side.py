"""TRL's half of the comparison: one optimizer step of its GRPOTrainer, timed phase by phase. Runs in TRL's environment.

Usage: python trl_side.py WORKLOAD.json MICRO_BATCH CHECKPOINTING(0|1) STEPS
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from workload import CLOCKS, Workload, lifetime, peak_memory_mb, report, reward_of


class TimedTrainer(trl.GRPOTrainer):
    """GRPOTrainer as it is, with a clock around its own methods and its own pass for the old logprobs switched on."""

    now: Callable[[], float]
    seconds: dict[str, float]
    step_seconds: list[dict[str, float]]
    lengths: set[tuple[int, int]]
    num_iterations: int

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._step % self.args.gradient_accumulation_steps == 0:
            self.seconds = defaultdict(float)
            self._started = self.now()
        return super().training_step(*args, **kwargs)

    def finish_step(self) -> None:
        """Called once the optimizer has stepped: what is neither sampling nor scoring is the update."""
        total = self.now() - self._started
        before = self.seconds["generation"] + self.seconds["old_logprob"] + self.seconds["ref_logprob"]
        self.seconds["update"] = total - before - self.seconds["other"]
        self.step_seconds.append(dict(self.seconds))

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        started = self.now()
        completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        self.seconds["generation"] += self.now() - started
        prompt_ids = args[0]
        self.lengths |= {
            (len(prompt), len(completion)) for prompt, completion in zip(prompt_ids, completion_ids, strict=True)
        }
        return completion_ids, logprobs

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        # With one optimizer step a generation TRL takes the first forward pass for the old logprobs and saves a pass.
        # Two iterations make it compute them; nothing else in this method reads the number.
        once, self.num_iterations = self.num_iterations, 2
        started = self.now()
        result = super()._generate_and_score_completions(*args, **kwargs)
        self.num_iterations = once
        timed = self.seconds["generation"] + self.seconds["old_logprob"] + self.seconds["ref_logprob"]
        self.seconds["other"] = self.now() - started - timed
        return result

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        started = self.now()
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if not torch.is_grad_enabled():
            name = "ref_logprob" if model is self.ref_model else "old_logprob"
            self.seconds[name] += self.now() - started
        return result


class _StepClock(transformers.TrainerCallback):
    trainer: TimedTrainer

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.finish_step()


def main() -> None:
    work = Workload.load(Path(sys.argv[1]))
    micro_batch, checkpointing, steps = int(sys.argv[2]), sys.argv[3] == "1", int(sys.argv[4])
    torch.set_num_threads(work.threads)
    prompts: list[Any] = [[{"role": "user", "content": text}] if work.chat else text for text in work.prompts]
    clock = _StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=work.policy,
            reward_funcs=_half_are_good(work.samples_per_prompt),
            args=trl.GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
                gradient_checkpointing=checkpointing,
                per_device_train_batch_size=micro_batch,
                gradient_accumulation_steps=work.completions // micro_batch,
                num_generations=work.samples_per_prompt,
                max_completion_length=work.new_tokens,
                max_steps=steps,
                learning_rate=work.learning_rate,
                lr_scheduler_type="constant",
                max_grad_norm=work.max_grad_norm,
                weight_decay=0.0,
                beta=work.kl_coef,
                epsilon=work.clip,
                loss_type="grpo",
                scale_rewards="group",
                temperature=work.temperature,
                shuffle_dataset=False,
                seed=work.seed,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            callbacks=[clock],
        )
        trainer.now = CLOCKS[work.clock]
        trainer.step_seconds, trainer.lengths, trainer.seconds = [], set(), defaultdict(float)
        clock.trainer = trainer
        trainer.train()
    work_seconds = sum(sum(step.values()) for step in trainer.step_seconds)
    report(
        {
            "steps": trainer.step_seconds,
            "overhead": lifetime(work.clock) - work_seconds,
            "peak_mb": peak_memory_mb(),
            "lengths": sorted(trainer.lengths),
            "threads": torch.get_num_threads(),
            "versions": {
                "trl": trl.__version__,
                "transformers": transformers.__version__,
                "torch": torch.__version__,
            },
        }
    )


def _half_are_good(group: int) -> Any:
    def reward(completions: list[Any], **kwargs: Any) -> list[float]:
        return [reward_of(index % group) for index in range(len(completions))]

    return reward


if __name__ == "__main__":
    main()
