"""Fake of ``verl.trainer.ppo.ray_trainer``: what a training step does with its batch."""


class RayPPOTrainer:
    global_steps = 0

    def _log_rollout_data(
        self, batch, reward_extra_infos_dict, timing_raw, rollout_data_dir
    ):
        self._dump_generations(
            inputs=["2+2?", "2+2?"],
            outputs=["4", "5"],
            gts=["4", None],
            scores=[1.0, 0.0],
            reward_extra_infos_dict=reward_extra_infos_dict,
            dump_path=rollout_data_dir,
        )

    def _dump_generations(
        self, inputs, outputs, gts, scores, reward_extra_infos_dict, dump_path
    ): ...
