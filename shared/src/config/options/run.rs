//! How it is run: the two processes, samplers on other hosts, and what is kept on disk.

/// Hands the sections of this file on to the next macro of the list, behind those that came before.
macro_rules! run {
    ($next:ident $(, $rest:ident)*; $($before:tt)*) => { $next! { $($rest),*; $($before)*

    "The pair" {
        /// How many versions behind the learner a group may have been sampled. 0 = synchronous and reproducible; larger
        /// values let generation and learning overlap.
        max_staleness: u64 = 0, at_most(1e6);
        /// Steps between published versions of the weights. With more steps the sampler changes its weights less often
        /// and falls behind by up to as many steps, so `max_staleness` must be at least this number less one. The last
        /// version is always published, and so is every version that `eval_steps` evaluates.
        publish_every: u64 = 1, at_least(1.0);
        /// Where published versions lie. They go when the run ends; checkpoints stay and hold the same.
        version_storage: VersionStorage = VersionStorage::Auto, keeps_results;
        /// What happens to running sequences when new weights arrive and `max_staleness` is above 0: `drain` keeps
        /// every completion to one version and leaves places empty meanwhile, `continue` keeps them filled and mixes
        /// versions, and `recompute` does so with one more prefill of each running sequence, after which no token
        /// depends on keys and values of older weights. The context of a conversation that waits for its tools is
        /// computed again in any case. The age of a group is that of its oldest token.
        weight_swap: WeightSwap = WeightSwap::Drain;
        /// Check every version before it is sampled from: the hashes and norms of its tensors, and the log-probs of a
        /// few tokens, must be the learner's (docs/runs.md has what is checked). Costs less than one per cent of a
        /// usual step on the CPU, and two to four where few short completions are made with a large model.
        conformity_gate: bool = true, keeps_results;
        /// With `conformity_gate`: a version that was refused is published again, and after so many refusals in a row
        /// the run ends with an error.
        max_refusals: u32 = 3, at_least(1.0), keeps_results;
        /// Where the sampler computes. A GPU is many times faster than the CPU; the sampler then computes in fp16.
        rollout_device: Device = Device::Cpu;
        /// Number formats on the CPU: fp32, those that are fastest on this processor, or these where they gain a tenth
        /// or more. It chooses `rollout_dtype`, `kv_dtype`, `bf16` and `importance_sampling_mode` where they have their
        /// defaults. Formats are measured once for each machine; the choice is printed, and a run that is resumed keeps
        /// it (docs/speed.md).
        precision: Precision = Precision::Exact;
        /// What the sampler's linear layers compute in. A rounded model (`int8`, `bf16` with AMX, `bf16dot` with
        /// AVX512_BF16) takes less memory and samples faster; the price is a `mismatch_kl` above 0, larger with `int8`
        /// and far larger with `int4`, which the importance correction answers, for long completions best token by
        /// token (`importance_sampling_mode` token_truncate).
        rollout_dtype: RolloutDtype = RolloutDtype::Auto;
        /// What the sampler stores keys and values as. `int8` takes a quarter of their memory and samples long
        /// completions faster with VNNI, `bf16` takes half and is for AVX512_BF16; the price is a `mismatch_kl` above
        /// 0, which the importance correction answers.
        kv_dtype: KvDtype = KvDtype::Auto;
        /// What computes the sampler's model on the CPU: `packed` is faster. The completions of the two differ by
        /// rounding.
        rollout_kernels: Kernels = Kernels::Packed;
        /// For models with experts: the sampler's choices of experts travel with its completions. The learner compares
        /// them with its own (`router_agreement`), or computes with them (R3), which keeps the two alike where rounding
        /// or newer weights would choose otherwise. Takes memory and two bytes for each choice of each token.
        router_replay: RouterReplay = RouterReplay::Disabled, source("verl `router_replay.mode`");
        /// Where the learner computes. TensorRT does not train.
        learner_device: Device = Device::Cpu;
        /// Threads of the sampler. More than there are cores free are slower than fewer; `tandem tune` measures it.
        rollout_threads: Option<usize> = None, absent("all cores when synchronous, half of them otherwise"),
            at_least(1.0), keeps_results;
        /// Threads of the learner. While both processes work at once, each takes cores from the other; on the CPU the
        /// learner uses the sampler's threads as well while that waits for it.
        learner_threads: Option<usize> = None, absent("as for the sampler"), at_least(1.0);
        /// Processes that share the learner's passes: each has the whole model and a share of each update's groups, and
        /// takes the memory of the learner. The learner starts them on this host, where each has a share of
        /// `learner_threads`; with torchrun's variables (RANK 0, WORLD_SIZE as many) it waits for them to come from any
        /// host as `tandem learner-rank`. With `learner_device` cuda each has a GPU of its own: that of its number, or
        /// of its LOCAL_RANK.
        learner_ranks: u32 = 1, at_least(1.0);
        /// Share the optimiser's moments out among the `learner_ranks`: each moves its part of the parameters and gives
        /// it to the others. That spares memory, two numbers for each parameter over all ranks instead of in each, and
        /// costs a few per cent of a step. Checkpoints are the same.
        shard_optimizer: bool = false, source("DeepSpeed's ZeRO stage 1");
        /// Sequences decoded at once: more give more tokens per second in total, up to a point, and take memory for
        /// their keys and values and longer for each sequence; `tandem tune` finds the point. No completion depends on
        /// it.
        max_num_seqs: Option<usize> = None, absent("the generation batch, as far as memory allows"),
            source("vLLM `max_num_seqs`"), at_least(1.0), keeps_results;
        /// Prompt tokens prefilled between two decode steps: more fills free places sooner, less keeps running
        /// sequences waiting less. A longer prompt is computed in pieces (with the stock kernels, as a whole).
        max_num_batched_tokens: usize = 8192, source("vLLM `max_num_batched_tokens`"), at_least(1.0), keeps_results;
        /// Most tokens that are computed ahead of a sequence in one step, guessed from its prompt and from the
        /// completions of its group; 0 = off. Saves steps while few sequences run, costs the work of wrong guesses and
        /// changes no completion.
        speculative_tokens: usize = 0, source("vLLM `num_speculative_tokens`"), keeps_results;
        /// Prompts prefilled in one call, padded to the longest. More prompts make fewer calls, which should pay on
        /// devices. Each takes a place in the KV cache, and on the CPU the last digits of its log-probs depend on the
        /// other prompts of its call. With the stock kernels; not yet run on a GPU.
        rollout_prefill_batch: usize = 1, at_least(1.0), needs_stock;
        /// Logits of a row that are fetched from the device to draw a token, which needs a few blocks of them; a row
        /// whose distribution needs more (a flat one with `top_p`) is fetched whole. More covers flatter ones, fewer
        /// fetch less; the completions are the same. 0 fetches everything always. With the stock kernels; not yet run
        /// on a GPU, where 8192 is worth a try.
        rollout_candidates: usize = 0, needs_stock;
        /// Record decode steps as CUDA graphs and replay them: saves the launches of small models and few sequences,
        /// costs padding to the next of a few batch sizes, attention laid out for `max_model_len`, and a moment for
        /// each size at its first use with each version of the weights. With `rollout_device` cuda; not yet run on a
        /// GPU.
        rollout_cuda_graphs: bool = false;
        /// Longest prompt plus completion. Less saves memory for keys and values and cuts completions off. Sequences of
        /// more than 32768 tokens need it, unless `max_prompt_length` is set or completions alone may take more than
        /// 16384. With `environment_factory` or `agent`, the default has room for one more `max_completion_length`: for
        /// the text of `reset`, or for the agent's own prompts. Longer ones take the room of completions, so set it
        /// then.
        max_model_len: Option<usize> = None,
            absent("what the dataset and `max_completion_length` need, within the model's limit"),
            source("vLLM `max_model_len`"), also(&["vllm_max_model_length"]),
            at_least(1.0);
        /// Seconds without any sign of life before a process that is stopped, or whose channel is silent, is ended and
        /// started again; a process without a launcher gives its peer up then. Too few end what is only slow, many
        /// leave a hang unnoticed for long.
        peer_timeout: f64 = 300.0, above(0.0), at_most(YEAR), because("seconds, at most a year"), keeps_results;
        /// Seconds that a process may take to read and export a model, to read data or to build a session, without a
        /// sign of progress; then the launcher ends it and starts it again.
        load_timeout: f64 = 3600.0, above(0.0), at_most(YEAR), because("seconds, at most a year"), keeps_results;
        /// The same between two signs of progress within a step: a micro-batch, a decode step, a piece of a prompt.
        step_timeout: f64 = 3600.0, above(0.0), at_most(YEAR), because("seconds, at most a year"), keeps_results;
        /// The same while a version, records or a checkpoint are written.
        save_timeout: f64 = 3600.0, above(0.0), at_most(YEAR), because("seconds, at most a year"), keeps_results;
        /// How often the launcher restarts a process that died: more ride out more crashes, and hide a lasting fault
        /// longer.
        max_restarts: u32 = 3, keeps_results;
    }

    "Samplers on other hosts" {
        /// Where samplers on other hosts (`tandem worker --join`) reach the run: `tcp/127.0.0.1:7447` or
        /// `tls/0.0.0.0:7447`. The run then samples with whatever workers come, in any number and at any time, and not
        /// by itself.
        listen: Option<String> = None, absent("the sampler is a process beside the learner"), keeps_results;
        /// Where weights lie for workers: a folder that they reach too, or a store of objects (`s3://bucket/run`,
        /// `gs://…`, `az://…`), whose credentials are in the usual variables of the environment. Workers on the host of
        /// the run need none.
        weights_store: Option<String> = None, absent("the folder `store` of the run, where one is \
            needed"), keeps_results;
        /// Versions that the store keeps at most, besides the newest one: those that a slow worker still samples from,
        /// and those that changes are fetched against.
        store_versions: u32 = 4, at_least(1.0), keeps_results;
        /// How versions lie in the store: `rounded` is a tenth of the bytes where workers compute in bf16 or int8, and
        /// half where they compute in fp32, for seconds of both sides.
        store_format: StoreFormat = StoreFormat::Auto, keeps_results;
        /// A file with the word that workers must know too (`--token-file`). It keeps others out; what passes can be
        /// read on the way unless `listen` is `tls/…`.
        token_file: Option<PathBuf> = None, absent("none; `listen` is then on this host alone, or workers have \
            certificates"), keeps_results;
        /// With `listen` `tls/…`: this side's certificate, in PEM.
        tls_certificate: Option<PathBuf> = None, absent("none"), keeps_results;
        /// With `listen` `tls/…`: the key of `tls_certificate`, in PEM.
        tls_private_key: Option<PathBuf> = None, absent("none"), keeps_results;
        /// With `listen` `tls/…`: certificates that those of workers must be signed by, in PEM; a worker without one is
        /// kept out.
        tls_client_ca: Option<PathBuf> = None, absent("workers need no certificate"), keeps_results;
        /// Where reward functions run: slow ones, those that execute programs or ask a model, are spread over many
        /// hosts on `workers`.
        rewards_on: RewardsOn = RewardsOn::Run, keeps_results;
        /// Share of the prompts that a second worker, or this host, is to complete again. A worker whose tokens or
        /// log-probs differ is dropped, and its completions that no step has used are made again. A larger share finds
        /// a wrong worker sooner. Fewer prompts are checked than this says: a check is left out where new weights come
        /// before it was made, where completions have tokens of several versions, and where 64 others wait.
        verify_share: f64 = 0.01, at_least(0.0), at_most(1.0), keeps_results;
        /// Seconds without a new token after which the prompts of a worker are given to others. A small number loses
        /// less time to a stuck worker, a large one wastes less work of a slow worker.
        lease_timeout: f64 = 60.0, above(0.0), at_most(YEAR), because("seconds, at most a year"), keeps_results;
        /// Accept workers whose log-probs differ in their last bits from those of the packed kernels on a CPU, because
        /// they use a GPU or the stock kernels. A run then no longer repeats byte for byte, and `mismatch_kl` also
        /// contains this difference.
        accept_other_kernels: bool = false;
    }

    "Bookkeeping" {
        /// Seed of everything random: the same seed gives the same completions, whatever the batch size or the threads.
        seed: u64 = 42, trl;
        /// Steps (generation batches) between checkpoints; in TRL, optimiser updates. A number below 1 is `save_ratio`.
        save_steps: u64 = 500, trl, at_least(1.0), share("save_ratio"), keeps_results;
        /// Share of all steps between checkpoints, rounded up to whole steps; wins over `save_steps`.
        save_ratio: Option<f64> = None, absent("`save_steps`"), above(0.0), at_most(1.0), keeps_results;
        /// Keep this many checkpoints, the oldest go.
        save_total_limit: Option<u32> = None, absent("all"), trl, at_least(1.0), keeps_results;
        /// Steps (generation batches) between evaluations on `eval_dataset`, the last version included; in TRL,
        /// optimiser updates. A number below 1 is `eval_ratio`.
        eval_steps: Option<u64> = None, absent("no evaluation"), trl, at_least(1.0), share("eval_ratio"), keeps_results;
        /// Share of all steps between evaluations, rounded up to whole steps; wins over `eval_steps`.
        eval_ratio: Option<f64> = None, absent("`eval_steps`"), above(0.0), at_most(1.0), keeps_results;
        /// The metric of the evaluations (`eval_steps`) by which checkpoints are compared: `eval_accuracy`,
        /// `eval_reward`, `eval_rewards/NAME/mean` or another one of `eval.jsonl`; `eval_` may be left out.
        /// `best.json` names the best checkpoint, which `save_total_limit` does not remove. After a step that is
        /// evaluated, the learner waits for the result. The starting model, which has no checkpoint, does not count.
        metric_for_best_model: Option<String> = None, absent("no checkpoint is the best one"), trl, keeps_results;
        /// Whether larger values of `metric_for_best_model` are better. Metrics that may be better large or small, such
        /// as lengths, need it.
        greater_is_better: Option<bool> = None, absent("true for rewards and shares of right answers"), trl,
            keeps_results;
        /// Make the best checkpoint by `metric_for_best_model` the run's model: at the end of the run, `model` in
        /// `output_dir` is a link to it. `save_steps` must be a multiple of `eval_steps`, so that every checkpoint is
        /// evaluated. In TRL, the trainer loads its weights.
        load_best_model_at_end: bool = false, trl, keeps_results;
        /// End the run after this many evaluations in a row whose `metric_for_best_model` is not better than the best
        /// one before. More ride out noise for longer.
        early_stopping_patience: Option<u64> = None, absent("every step is made"),
            source("transformers `EarlyStoppingCallback`"), at_least(1.0), keeps_results;
        /// With `early_stopping_patience`: by more than this much an evaluation must be better than the best one before
        /// it.
        early_stopping_threshold: f64 = 0.0, source("transformers `EarlyStoppingCallback`"), at_least(0.0),
            keeps_results;
        /// Steps between progress lines when not on a terminal, and between completions that are printed. A number
        /// below 1 is `logging_ratio`.
        logging_steps: u64 = 1, trl, at_least(1.0), share("logging_ratio"), keeps_results;
        /// Share of all steps between progress lines, rounded up to whole steps; wins over `logging_steps`.
        logging_ratio: Option<f64> = None, absent("`logging_steps`"), above(0.0), at_most(1.0), keeps_results;
        /// Trackers that are told of every step and evaluation while the run goes on: `wandb`, `trackio`. A Python
        /// (`reward_python`) with their packages speaks to them. Event files for TensorBoard are always there, so
        /// `tensorboard` and `none` ask for nothing.
        report_to: Vec<String> = Vec::new(), trl, keeps_results;
        /// What trackers call the run.
        run_name: Option<String> = None, absent("the last two parts of `output_dir`"), trl, keeps_results;
        /// Write every step's completions to `completions/`: a few kilobytes each on disk.
        log_completions: bool = true, trl, keeps_results;
        /// Completions that are printed every `logging_steps`, from the best of the step to the worst: 3 are these and
        /// one between. Long ones are cut. Needs `log_completions`; 0 = none. In TRL, drawn at random.
        num_completions_to_print: u32 = 0, trl, keeps_results;
        /// Newest steps of which `completions/tokens-N.jsonl` says what the loss did with every token, for `tandem
        /// explain`: some 60 bytes a token; 0 = none.
        token_records: u64 = 20, keeps_results;
        /// GiB that a run's completions, records (metrics, ledger) and TensorBoard's events may take on disk. At the
        /// limit the oldest completions go, then the oldest records, with a notice (docs/recovering.md); 0 = no limit.
        /// Checkpoints, `batches/` and logs, which have bounds of their own, are not counted.
        records_size_limit: f64 = 1.0, at_least(0.0), at_most(1e6), because("GiB"), keeps_results;
        /// Keep each step's groups and the state it began with in `batches/`, for `tandem replay`: costs disk space
        /// and time for weights and optimiser state at every step.
        save_step_batches: bool = false, keeps_results;
        /// Write `trace.json`, a timeline of the sampler's prefills, decode steps, sampling, rewards, waits and swaps
        /// of weights, which https://ui.perfetto.dev opens. It appears when the sampler ends and holds the newest
        /// events, at most 40 MB; it costs a few events a step.
        rollout_trace: bool = false, keeps_results;
        /// `latest` (TRL's `true`), or a `checkpoint-N` to go on from: its path, or its name where it lies in
        /// `output_dir`. The folder of a run stands for its newest checkpoint. The newest one goes on in its
        /// `output_dir`; an earlier one needs another `output_dir`, into which the run branches off.
        resume_from_checkpoint: Option<String> = None, absent("from the beginning"), trl, keeps_results;
    }

    } };
}
pub(super) use run;
