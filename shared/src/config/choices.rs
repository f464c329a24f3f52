//! The options with a closed list of values: each value with its word in `run.toml`, other words for it, and its
//! meaning. Methods are in [`crate::methods`], devices and element types in [`crate::system::compute`], and the rule
//! for rewards that failed in [`crate::generation::group`].

use crate::declare::choices;

choices! {
    /// How the coefficient of the KL penalty in the reward moves. verl `kl_ctrl.type`.
    KlController {
        /// It stays at `beta`.
        Fixed = "fixed",
        /// It follows the measured KL towards `kl_target` (Ziegler et al. 2019, section 2.2).
        Adaptive = "adaptive",
    }

    /// What becomes of the experts that the sampler chose. verl `router_replay.mode`.
    RouterReplay {
        /// Nobody is told of them.
        Disabled = "disabled",
        /// The learner chooses by itself, and counts how often it chooses the same.
        Compare = "compare",
        /// The learner computes with them, in all passes over the tokens that the sampler computed (rollout routing
        /// replay).
        R3 = "R3",
    }

    /// Correction for the mismatch between sampler and learner: the unit of the ratio `exp(old − sampling log-prob)`,
    /// and the treatment of ratios outside its bounds. TRL `vllm_importance_sampling_mode`.
    ImportanceSamplingMode {
        /// Each token's ratio, clamped to the bounds.
        TokenTruncate = "token_truncate",
        /// Each token's ratio; a token outside the bounds leaves the loss.
        TokenMask = "token_mask",
        /// The product over the sequence, clamped to the bounds.
        SequenceTruncate = "sequence_truncate",
        /// The product over the sequence; a sequence outside the bounds leaves the loss.
        SequenceMask = "sequence_mask",
    }

    /// Advantage of a completion whose group has no other to compare it with.
    LoneAdvantage {
        /// 0 (TRL).
        Zero = "zero",
        /// Its reward, as if the others' mean were 0 and their deviation 1 (verl).
        Reward = "reward",
    }

    /// Which standard deviation the rewards of steps are divided by. DeepSeekMath leaves it open.
    StepDeviation {
        /// With n − 1, as everywhere in TRL; 0 for a single step.
        Unbiased = "unbiased",
        /// With n, numpy's default.
        Population = "population",
    }

    /// Learning-rate schedule. transformers `lr_scheduler_type`.
    LrSchedulerType {
        /// The peak rate throughout.
        Constant = "constant",
        /// The peak rate after a linear warm-up.
        ConstantWithWarmup = "constant_with_warmup",
        /// Linear to 0 after a linear warm-up.
        Linear = "linear",
        /// A cosine to 0 after a linear warm-up. `num_cycles` (0.5): waves, of which the default is half a one.
        Cosine = "cosine",
        /// Half cosines to 0, each from the peak rate on, after a linear warm-up. `num_cycles` (1): how many.
        CosineWithRestarts = "cosine_with_restarts",
        /// A power of what is left, to `lr_end` (1e-7), after a linear warm-up. `power` (1).
        Polynomial = "polynomial",
        /// The inverse of a square root, after a linear warm-up. `timescale` (the warm-up, or 10000 without one):
        /// updates.
        InverseSqrt = "inverse_sqrt",
        /// As cosine, to a smallest rate: `min_lr`, or as a share of the peak `min_lr_rate`; one of them must be given.
        /// `num_cycles` (0.5).
        CosineWithMinLr = "cosine_with_min_lr",
        /// As cosine_with_min_lr, one update ahead, with a warm-up that does not begin at 0: `warmup_lr_rate` (one
        /// update's share of the warm-up) is the share of the peak that it begins with.
        CosineWarmupWithMinLr = "cosine_warmup_with_min_lr",
        /// A warm-up, the peak rate, and a decay over the last `num_decay_steps` updates, which must be given.
        /// `num_stable_steps` (what is left), `warmup_type` (linear) and `decay_type` (cosine) of linear, cosine and
        /// 1-sqrt, `min_lr_ratio` (0): where both begin and end, `num_cycles` (0.5).
        WarmupStableDecay = "warmup_stable_decay",
    }

    /// Treatment of running sequences when new weights arrive (only with `max_staleness` above 0).
    WeightSwap {
        /// Running sequences finish on the weights they began with, and conversations all their turns; new ones wait
        /// until the swap.
        Drain = "drain",
        /// Running sequences go on under the new weights after their keys and values were computed again. Each token
        /// carries its version, and its log-prob is that of this version over the whole context.
        Recompute = "recompute",
        /// Running sequences go on under the new weights with the keys and values they have; each token carries its
        /// version.
        Continue = "continue",
    }

    /// Treatment of conversations that take much longer than others of their group.
    Stragglers {
        /// Nothing: the group waits for them.
        Wait = "wait",
        /// The group is dropped, and its prompt drawn again.
        Drop = "drop",
        /// They end without a reward, and the rest of the group is trained on. Where fewer than two of it have ended
        /// well, the group is dropped, and its prompt drawn again.
        TrainRest = "train_rest",
    }

    /// Where reward functions run, with `listen`.
    RewardsOn {
        /// Beside the learner.
        Run = "run",
        /// On the workers, for groups that one worker makes: what a group costs is then spread over their hosts. They
        /// need what the functions need (`tandem worker --reward-dir`); what they say is believed.
        Workers = "workers",
    }

    /// Form in which versions of the weights are stored in `weights_store`, for workers.
    StoreFormat {
        /// Not at all where `listen` is a loopback address and no `weights_store` is named: workers, which are on the
        /// learner's host, read them where it leaves them. Else `rounded` in a `weights_store` where that is possible,
        /// and `plain` in the folder of the run.
        Auto = "auto",
        /// As they are: nothing is computed for it, and every worker can use them.
        Plain = "plain",
        /// Rounded to what workers compute in (`rollout_dtype`), compressed, and besides as the difference to the
        /// versions that workers have. Takes a few seconds of a core for each version, and no completion is another.
        /// Adapters are small and lie as they are.
        Rounded = "rounded",
    }

    /// Place of the published versions of the weights until the run ends. Checkpoints are on disk.
    VersionStorage {
        /// In shared memory, where all that are needed at once fit into its free space and a quarter of the machine's
        /// memory; else on disk.
        Auto = "auto",
        /// In the run directory.
        Disk = "disk",
    }
}
