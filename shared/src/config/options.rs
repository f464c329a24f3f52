//! Every option of a run, declared once. How to read and extend the list is said in the [module above](super).

use std::path::PathBuf;

use super::{
    AdvantageEstimator, AdvantageLevel, Device, EnvironmentFactory, ImportanceSamplingLevel, ImportanceSamplingMode,
    JsonTable, Kernels, KlController, KlEstimator, KvDtype, LoneAdvantage, LossAggregation, LossType, LrSchedulerType,
    MultiObjectiveAggregation, Paths, Precision, RewardFailure, RewardsOn, RolloutDtype, RouterReplay, ScaleRewards,
    StepDeviation, StoreFormat, Stragglers, VersionStorage, WeightSwap, option::options,
};

/// Seconds of a year: a clock can add that many to its time, and no timeout needs more.
const YEAR: f64 = 365.0 * 24.0 * 3600.0;

options! {
    "Model and data" {
        /// Hugging Face model directory to start from, or its name on the Hub (`Qwen/Qwen2.5-0.5B-Instruct`).
        model: PathBuf = PathBuf::new(), source("TRL `model_name_or_path`"), also(&["model_name_or_path"]), on_hub;
        /// Branch, tag or commit of `model`, where it is a name on the Hub. A run that is resumed keeps the commit that
        /// it began with.
        model_revision: String = "main".into(), trl;
        /// Training prompts: a file (JSON lines, JSON, CSV, TSV, Parquet, Arrow, also with gzip or zstd), a folder as
        /// `save_to_disk` writes it or as it is on the Hugging Face Hub, a name there (`openai/gsm8k`), or a list of
        /// such. docs/data.md has the formats and the shapes of rows.
        dataset: Paths = Paths::default(), source("TRL `dataset_name`"), also(&["dataset_name"]), on_hub;
        /// Configuration of `dataset` and `eval_dataset`, where they have several (`main` and `socratic` of
        /// `openai/gsm8k`).
        dataset_config: Option<String> = None, absent("the only one, or the one that the dataset's card calls the \
            default"), trl;
        /// Branch, tag or commit of those of `dataset` and `eval_dataset` that are names on the Hub.
        dataset_revision: String = "main".into(), source("datasets `revision`");
        /// With several of `dataset`: how many prompts are drawn from each, in proportion. A dataset with a larger
        /// share than its rows have is gone through more often than the others. Empty = as many as each has rows.
        dataset_weights: Vec<f64> = Vec::new(), source("OpenRLHF `prompt_data_probs`"),
            also(&["prompt_data_probs"]), above(0.0);
        /// The split of `dataset` to train on, where it is a folder with several.
        dataset_train_split: String = "train".into(), trl;
        /// Evaluation prompts for `eval_steps`: a file, a folder or a name, as for `dataset`.
        eval_dataset: Option<PathBuf> = None, absent("no evaluation"), keeps_results, on_hub;
        /// The split of `eval_dataset` to evaluate on, where it is a folder with several.
        dataset_test_split: String = "test".into(), trl, keeps_results;
        /// Column that is the prompt, where it has another name: a text, or a list of messages.
        prompt_column: Option<String> = None, absent("`prompt`, or what docs/data.md says of known shapes of rows"),
            source("verl `data.prompt_key`"), also(&["prompt_key"]);
        /// Column that is the right answer, where it has another name; `extra_info.answer` is a field of a column.
        /// Reward functions find it as `answer`, and under its own name too.
        answer_column: Option<String> = None, absent("`answer`, or what docs/data.md says of known shapes of rows"),
            source("RLinf `data.answer_key`"), also(&["answer_key"]);
        /// Where the run is written.
        output_dir: PathBuf = "runs/grpo".into(), trl, keeps_results;
        /// System message put before every prompt, whose tokens are prefilled with each; a plain text prompt becomes a
        /// user message then. A row that has a system message of its own keeps that alone.
        system_prompt: Option<String> = None, absent("none");
        /// Chat template in the place of the model's: a file in Jinja, or a model directory that has one. Checkpoints
        /// carry it.
        chat_template: Option<PathBuf> = None, absent("the model's"), source("TRL `chat_template_path`"),
            also(&["chat_template_path"]);
        /// Variables for the chat template, as in `{ enable_thinking = false }`: switches of its own, which make other
        /// prompts. A row's column of that name goes before.
        chat_template_kwargs: Option<JsonTable> = None, absent("none"), trl, also(&["apply_chat_template_kwargs"]);
        /// The moment that chat templates take for now (`strftime_now`), as `2026-01-31T12:00:00Z`. `config.toml` of
        /// the run keeps it, so that a run which is resumed on another day has the same prompts.
        template_date: Option<String> = None, absent("when the run began");
        /// Keep at most this many tokens of a prompt, from its end: bounds time and memory, loses the beginning.
        max_prompt_length: Option<u32> = None, absent("all"), at_least(1.0);
        /// Draw the prompts in a seeded random order, a new one each epoch.
        shuffle_dataset: bool = true, trl;
    }

    "Rewards" {
        /// The reward functions: rules by name, with parameters as in `sentence_share:word=dog` (`tandem rewards` lists
        /// them), Python functions as `my_rewards.py:my_function`, programs, reward models. Rules cost next to nothing,
        /// the others take cores from the sampler.
        reward_funcs: Vec<String> = Vec::new(), trl;
        /// Weight of each reward function in the sum: more of one counts for less of the others; empty = all 1.
        reward_weights: Vec<f64> = Vec::new(), trl;
        /// Seconds that one call of a reward function may take before it counts as failed. A call is for one
        /// completion, or for all of a prompt where the function sees them together (Python functions, `command`,
        /// `model`, `relative_length`). More is kinder to slow functions, and a hanging one holds its group up for
        /// longer.
        reward_timeout: f64 = 10.0, above(0.0), at_most(YEAR), because("seconds, at most a year");
        /// What becomes of a completion on which a reward function failed: raised an error, ran out of time, or gave no
        /// number. Abstaining is no failure.
        reward_failure: RewardFailure = RewardFailure::Exclude;
        /// End the run with an error when a reward function fails on every completion of a step; false = go on without
        /// it.
        reward_failure_stops: bool = true, keeps_results;
        /// Folder that relative paths within `reward_funcs` start from, and in which programs and Python functions run.
        reward_dir: Option<PathBuf> = None,
            absent("the folder of the file that has `reward_funcs`, or the working directory"), keeps_results;
        /// Python interpreter for reward functions in Python: a name, or the path of one in a virtual environment.
        /// Where no option names one, the variable `TANDEM_REWARD_PYTHON` does; the programs of the Python wheel set
        /// it to their own interpreter.
        reward_python: String = "python3".into(), keeps_results;
        /// Processes of each Python function and of each program: so many groups are scored at once, which pays where
        /// scoring is slow or waits for a service, and each process takes its memory.
        reward_processes: u32 = 1, at_least(1.0), at_most(1024.0), keeps_results;
        /// Let programs and Python functions use the network, for instance to ask a judge, which is slower than a rule
        /// and may answer otherwise the next time; false = they have sockets within this machine's file system only.
        /// docs/rewards.md says what else they may do.
        reward_network: bool = false, keeps_results;
        /// Further variables of the environment that programs and Python functions get, for instance the key of a
        /// judge; one that ends with `*` stands for all that begin so. Without it, they get paths, language and time
        /// zone.
        reward_env: Vec<String> = Vec::new(), keeps_results;
        /// Files and folders that programs and Python functions may write to, besides the temporary folder that each
        /// process has of its own (`TMPDIR`): a cache, or `/dev` for a GPU.
        reward_writable: Option<Paths> = None, absent("nowhere else"), keeps_results;
        /// GiB of memory that a process of a program or Python function may take, with all that it started. More leaves
        /// less to the sampler.
        reward_memory: Option<f64> = None, absent("half of what the machine, or the control group, has"), above(0.0),
            at_most(1e6), because("GiB"), keeps_results;
        /// Seconds of processor time after which a process of a program or Python function is killed and started again:
        /// ends what computes on and on without being asked; a call has `reward_timeout`.
        reward_cpu: u64 = 3600, at_least(1.0), keeps_results;
        /// Processes that a process of a program or Python function may have at once, itself included: more let one
        /// that forks on and on take more of the machine.
        reward_max_processes: u32 = 256, at_least(1.0), keeps_results;
        /// GiB that a file may have which a program or Python function writes; more lets one fill more of the disk.
        reward_file_size: f64 = 1.0, above(0.0), at_most(1e6), because("GiB"), keeps_results;
        /// GiB that all files together may have in the temporary folder of a process of a program or Python function;
        /// more lets one fill more of the disk.
        reward_disk: Option<f64> = None, absent("four times `reward_file_size`"), above(0.0), at_most(1e6),
            because("GiB"), keeps_results;
        /// Address of the endpoint that `judge:rubric.md` asks, in OpenAI's forms: `http://localhost:8000/v1` for
        /// `tandem serve` or vLLM on this machine. Prompts and completions go there, and each completion costs a
        /// request.
        judge_base_url: Option<String> = None, absent("no judge"), keeps_results;
        /// Name of the model that judges. A larger one takes longer and costs more for each completion.
        judge_model: Option<String> = None, absent("no judge");
        /// Variable of the environment with the key of the judge's endpoint. Without the variable, no key is sent.
        judge_api_key_env: String = "OPENAI_API_KEY".into(), keeps_results;
        /// Try the reward functions on sample completions of a few rows before training, and refuse to start where one
        /// cannot work; false = only load them, for instance where each call costs money.
        rehearse_rewards: bool = true, keeps_results;
    }

    "Generation" {
        /// Completions per prompt (the group size G): more give a firmer baseline and share one prefill, fewer let a
        /// step see more prompts.
        num_generations: u32 = 8, trl, also(&["group_size", "n_samples_per_prompt"]), at_least(2.0),
            because("a group of one has no baseline");
        /// Longest completion in tokens: time and memory of a step grow with it, and what is longer is cut off.
        max_completion_length: u32 = 512, trl, also(&["max_response_length"]), at_least(1.0);
        /// Divides the logits: lower is safer and more alike, higher explores more.
        temperature: f32 = 1.0, trl, above(0.0),
            because("greedy completions of a prompt are all the same and teach nothing");
        /// Draw from the smallest set of tokens that holds this probability (nucleus sampling): cuts the unlikely tail;
        /// 1 = off.
        top_p: f32 = 1.0, trl, above(0.0), at_most(1.0);
        /// Draw from this many of the likeliest tokens only: fewer slips, less variety; 0 = off.
        top_k: u32 = 0, trl;
        /// Drop tokens less likely than this times the likeliest: a cut that adapts to how sure the model is.
        min_p: Option<f32> = None, absent("off"), trl, at_least(0.0), at_most(1.0);
        /// Make tokens that have appeared less likely: fewer loops, but also fewer rightful repeats; 1 = off.
        repetition_penalty: f32 = 1.0, trl, above(0.0);
        /// Texts that end a completion, which saves the tokens that would follow.
        stop: Vec<String> = Vec::new();
        /// Draw only tokens with which this regular expression can match the completion from beginning to end: answers
        /// have the form from the first step on, and no reward has to teach it. Both sides take log-probs over the
        /// tokens that may come. A completion is whole where nothing more can come, or with an end token, which may
        /// come where the text so far matches. `stop` and `max_completion_length` still cut. Evaluations in the run
        /// follow it too; `tandem eval` does not. The syntax is that of the crate `regex`, without Unicode word
        /// boundaries.
        structured_outputs_regex: Option<String> = None, absent("any text"),
            source("TRL `vllm_structured_outputs_regex`");
        /// Replace groups that teach nothing (see `filter_groups_metric`) by groups of further prompts until the batch
        /// is full (DAPO section 3.2). A step then uses up more prompts, so that a given number of steps
        /// takes more epochs.
        dynamic_sampling: bool = false, source("verl `filter_groups.enable`");
        /// With `dynamic_sampling`: at most this many times `generation_batch_size` completions are sampled for one
        /// step; then groups without contrast fill the batch and the run goes on with a warning.
        dynamic_sampling_max_attempts: u32 = 10, source("verl `filter_groups.max_num_gen_batches`"),
            also(&["max_num_gen_batches"]), at_least(1.0);
        /// With `dynamic_sampling`: what decides whether a group teaches something. A function of `reward_funcs` that
        /// judges answers: some of its completions are right, but not all (DAPO eq. 11). Another function: its scores
        /// differ. `reward`: the rewards differ, as advantages are made of them. The start of a run says which.
        filter_groups_metric: Option<String> = None,
            absent("the first function that judges answers, else the first in Python whose name says so; `reward` \
                where none does or steps are rewarded"),
            source("verl `filter_groups.metric`");
    }

    "Tools and environments" {
        /// Tools that the policy may call: Python functions as `my_tools.py:add`, whose hints and docstring say what
        /// they take, built-in ones as `builtin:calculator`, and those of a program as `command:./my_tools`. A
        /// completion is then a conversation of several turns, and its replies count for `max_completion_length`.
        /// docs/agents.md has the details. Processes, permissions and limits are those of reward functions
        /// (`reward_python`, `reward_network` and the like).
        tools: Vec<String> = Vec::new(), trl;
        /// The class of each conversation's own environment, as `my_env.py:Maze` or `builtin:maze`: its public methods
        /// are tools, and its `get_reward` is one more reward with the weight 1. A program in any language is one as
        /// `command:./my_env`. A table of names and environments gives each row the one that its column `environment`
        /// names.
        environment_factory: Option<EnvironmentFactory> = None, absent("no environment"), trl;
        /// Turns of a conversation whose calls are run: fewer bound its length and time, and end it where the policy
        /// would go on.
        max_tool_calling_iterations: Option<u32> = None, absent("as many as fit"), trl, at_least(1.0);
        /// Seconds that a call of a tool, and the opening and the reward of an environment, may take. A conversation
        /// whose environment is late has no reward and is not trained on. More is kinder to slow tools, and a hanging
        /// one holds its group up for longer.
        environment_timeout: f64 = 10.0, above(0.0), at_most(YEAR), because("seconds, at most a year");
        /// Seconds that a whole conversation may take, its tools included, from the time at which its first turn may
        /// begin. One that takes longer ends without a reward and is not trained on. Where only long conversations are
        /// late, the policy learns brevity: `environment/late` counts them. A bound of time makes results depend on the
        /// speed of the machine.
        episode_timeout: Option<f64> = None, absent("no bound"), above(0.0), at_most(YEAR),
            because("seconds, at most a year");
        /// What becomes of the slowest conversations of a group. One of them holds up its group, and with it the step:
        /// `wait` keeps all, `train_rest` leaves the slowest out, and `drop` the whole group, so that no conversation
        /// is missing because it was long. Both make results depend on the speed of the machine and the tools.
        stragglers: Stragglers = Stragglers::Wait;
        /// With `stragglers` drop or train_rest: a conversation is a straggler when it takes so many times as long as
        /// the first half of its group has taken, and more than a second.
        straggler_after: f64 = 3.0, at_least(1.0), at_most(1e6), because("a multiple of a time");
        /// Conversations whose keys and values are held while their tools work, each with the memory of one more
        /// sequence. Beyond that those that have waited longest are dropped: their context is computed again, to the
        /// same bits. With the packed kernels.
        max_kept_states: Option<usize> = None, absent("as many as `max_num_seqs`"), keeps_results;
        /// A command line for `/bin/sh`, started once for each completion: the program of an agent, which asks the
        /// policy over HTTP in OpenAI's forms. It gets its row as JSON on its standard input, and `OPENAI_BASE_URL` and
        /// `OPENAI_API_KEY` in its environment. Its reward has the weight 1. The sampler is then `rollout-serve`.
        agent: Option<String> = None, absent("no agent");
        /// Agents that run at once. More keep the sampler busy while agents work; each is a process of its own.
        max_concurrent_agents: u32 = 32, at_least(1.0), at_most(4096.0), because("each has a process and a thread");
        /// Seconds that an agent may take in all. A completion whose agent is late has no reward and is not trained on.
        /// More is kinder to slow agents, and a hanging one holds its group up for longer.
        agent_timeout: f64 = 600.0, above(0.0), at_most(YEAR), because("seconds, at most a year");
    }

    "Batch and schedule" {
        /// Completions of one minibatch.
        per_device_train_batch_size: u32 = 8, trl, at_least(1.0);
        /// Minibatches per optimiser update.
        gradient_accumulation_steps: u32 = 1, trl, at_least(1.0);
        /// Minibatches per generation batch.
        steps_per_generation: Option<u32> = None, absent("`gradient_accumulation_steps`"), trl, at_least(1.0);
        /// Completions per step. Rounded up to whole groups.
        generation_batch_size: Option<u32> = None,
            absent("`per_device_train_batch_size` × `steps_per_generation`"), trl, at_least(1.0);
        /// Passes over the training prompts; `max_steps` wins.
        num_train_epochs: f64 = 3.0, trl, also(&["total_epochs"]), above(0.0);
        /// Number of steps: generation batches with all their optimiser updates. TRL counts the updates, also for
        /// `save_steps`, `eval_steps` and `ref_model_sync_steps`.
        max_steps: Option<u64> = None, absent("as many as `num_train_epochs` makes"), trl,
            also(&["total_training_steps"]), at_least(1.0);
        /// Optimisation passes over each generation batch (μ).
        num_iterations: u32 = 1, trl, also(&["ppo_epochs"]), at_least(1.0);
        /// Most tokens that the learner holds in one forward pass, where a prompt goes through once for all of its
        /// completions that fit. It bounds memory and changes a gradient by rounding alone. Groups that do not fit have
        /// their prompt computed once for each part.
        micro_batch_tokens: Option<u32> = None,
            absent("the smallest that is as fast as larger ones, less where the memory of the machine is too small; a \
                    resumed run keeps its own"),
            at_least(1.0);
    }

    "Memory of the learner" {
        /// Keep each layer's input alone and compute the layer again on the way back: activations take a small part of
        /// the memory, a step about a third more time, and the result is the same bit for bit. TRL's default is true.
        gradient_checkpointing: bool = false, trl, keeps_results;
        /// Compute the learner's layers in bfloat16, with float32 copies of what is trained; norms, softmax, loss and
        /// logits stay in float32. Faster where the processor multiplies bfloat16 (AMX, AVX-512 BF16,
        /// GPUs); the sampler gets the rounded weights. TRL's default is true.
        bf16: bool = false, trl;
        /// Train a low-rank adapter (LoRA) beside the frozen model instead of the model itself: gradients and optimiser
        /// state of a hundredth of the size, a cheaper backward pass, versions of a few megabytes, and a reference
        /// policy at no memory. Versions and checkpoints are PEFT directories. It wants about ten times the learning
        /// rate.
        use_peft: bool = false, trl;
        /// With `use_peft`: rank of the adapter. More can learn more, and costs more.
        lora_r: u32 = 16, trl, at_least(1.0);
        /// With `use_peft`: the adapter's product is multiplied by `lora_alpha` / `lora_r`.
        lora_alpha: f64 = 32.0, trl, above(0.0);
        /// With `use_peft`: the linear layers that have an adapter, by the ends of their names, as `q_proj`.
        lora_target_modules: Vec<String> = Vec::new(), trl;
        /// With `use_peft`: share of the adapter's inputs that training drops. Only 0: log-probs would not be the
        /// sampler's.
        lora_dropout: f64 = 0.0, trl, at_least(0.0), below(1.0);
        /// With `use_peft`: multiply by `lora_alpha` / √`lora_r` (rank-stabilised LoRA).
        use_rslora: bool = false, trl;
    }

    "Advantages" {
        /// How rewards become advantages.
        advantage_estimator: AdvantageEstimator = AdvantageEstimator::Grpo,
            source("verl `adv_estimator`, RLinf `adv_type`"), also(&["adv_estimator", "adv_type"]);
        /// In conversations with an environment that gives rewards by turn: whether these are summed for the whole
        /// conversation, or each turn has an advantage of its own. `turn` needs `advantage_estimator` process, which
        /// takes turns for steps.
        advantage_level: AdvantageLevel = AdvantageLevel::Trajectory;
        /// What centred rewards are divided by (with `advantage_estimator` grpo; grpo_passk has `group` and `none`).
        scale_rewards: ScaleRewards = ScaleRewards::Group,
            source("TRL `scale_rewards`, verl `norm_adv_by_std_in_grpo`");
        /// Added to the standard deviations that rewards are divided by (`advantage_estimator` grpo, grpo_passk and
        /// process).
        advantage_epsilon: Option<f64> = None,
            absent("1e-4 for grpo and process, as in TRL, and 1e-6 for grpo_passk, as in verl"),
            source("verl's argument `epsilon`, 1e-6 for grpo too"), at_least(0.0);
        /// Advantage of the only completion of a group that has a reward, with `advantage_estimator` grpo.
        lone_advantage: LoneAdvantage = LoneAdvantage::Zero, source("TRL; `reward` is verl's rule");
        /// Standard deviation that rewards of steps are divided by, with `advantage_estimator` process.
        step_deviation: StepDeviation = StepDeviation::Unbiased, source("DeepSeekMath section 4.1.3");
        /// How several reward functions become one advantage.
        multi_objective_aggregation: MultiObjectiveAggregation = MultiObjectiveAggregation::SumThenNormalize, trl;
        /// Whiten the advantages over all trained tokens of the generation batch.
        normalize_advantages: bool = false, source("RLinf `normalize_advantages`");
        /// Discount of rewards to come (`advantage_estimator` gae and reinforce_plus_plus).
        gamma: f64 = 1.0, trl, at_least(0.0), at_most(1.0);
        /// λ of generalised advantage estimation.
        lam: f64 = 0.95, trl, at_least(0.0), at_most(1.0);
    }

    "Critic (advantage_estimator gae)" {
        /// Model directory that the critic starts from. A head that is not there starts at 0.
        critic_model: Option<PathBuf> = None, absent("the policy's"), on_hub;
        /// Peak learning rate of the critic.
        critic_learning_rate: f64 = 1e-5, source("verl `critic.optim.lr`"), at_least(0.0);
        /// Steps in which only the critic learns.
        critic_warmup_steps: u64 = 0, source("verl `trainer.critic_warmup`"), also(&["critic_warmup"]);
        /// How far a value may move from the one that the step began with before its loss is clipped.
        cliprange_value: f64 = 0.2, trl, above(0.0);
    }

    "Objective" {
        /// Policy term and reduction.
        loss_type: LossType = LossType::Dapo, source("TRL `loss_type`, verl `policy_loss.loss_mode`"),
            also(&["loss_mode"]);
        /// How the losses of tokens are reduced to one number.
        loss_aggregation: Option<LossAggregation> = None, absent("that of `loss_type`"),
            source("verl `loss_agg_mode`, RLinf `loss_agg_func`"), also(&["loss_agg_mode", "loss_agg_func"]);
        /// Divisor of `seq-mean-token-sum-norm`.
        loss_scale_factor: Option<f64> = None, absent("`max_completion_length`"), source("verl `loss_scale_factor`"),
            above(0.0);
        /// What the importance ratio is taken over.
        importance_sampling_level: ImportanceSamplingLevel = ImportanceSamplingLevel::Token, trl;
        /// Clip range below (and above, without `epsilon_high`).
        epsilon: f64 = 0.2, trl, also(&["clip_ratio", "clip_ratio_low", "ratio_clip_eps", "eps_clip"]),
            at_least(0.0), below(1.0);
        /// Clip range above. For `loss_type` cispo it is the cap of the ratio itself.
        epsilon_high: Option<f64> = None, absent("`epsilon`"), trl,
            also(&["clip_ratio_high", "eps_clip_high"]), at_least(0.0);
        /// Cap of the unclipped ratio (two-sided clipping, INTELLECT-2).
        delta: Option<f64> = None, absent("none"), trl, above(0.0);
        /// Dual clip of `loss_type` vanilla: bound of the loss of tokens with a negative advantage.
        clip_ratio_c: f64 = 3.0, source("verl `clip_ratio_c`"), above(1.0), because("it bounds a ratio");
        /// SAPO's temperature for advantages above 0.
        sapo_temperature_pos: f64 = 1.0, trl, above(0.0);
        /// SAPO's temperature for the other advantages.
        sapo_temperature_neg: f64 = 1.05, trl, above(0.0);
        /// VESPO's exponent for advantages of at least 0.
        vespo_k_pos: f64 = 2.0, trl, at_least(0.0);
        /// VESPO's decay for advantages of at least 0.
        vespo_lambda_pos: f64 = 3.0, trl, at_least(0.0);
        /// VESPO's exponent for negative advantages.
        vespo_k_neg: f64 = 3.0, trl, at_least(0.0);
        /// VESPO's decay for negative advantages.
        vespo_lambda_neg: f64 = 2.0, trl, at_least(0.0);
        /// Leave truncated completions out of the loss; they still count in the baseline.
        mask_truncated_completions: bool = false, trl;
        /// Train only on this share of each minibatch's tokens, those of highest entropy; 1 = all.
        top_entropy_quantile: f64 = 1.0, trl, above(0.0), at_most(1.0);
        /// Leave out completions with a negative advantage whose mean `sampling_logprobs − logprobs` is above this.
        /// It grows with every update since the completion was sampled (`max_staleness`, `num_iterations`) and with a
        /// rounded sampler (`rollout_dtype`, `kv_dtype`).
        off_policy_mask_threshold: Option<f64> = None, absent("none"), trl, at_least(0.0);
        /// Leave a minibatch out when its mean ratio is above this.
        early_stop_imp_ratio: Option<f64> = None, absent("none"), source("RLinf `early_stop_imp_ratio`"),
            above(1.0), because("it bounds a ratio");
        /// Weigh each minibatch by its share of the update's trained tokens.
        use_valid_token_scale: bool = false, source("RLinf `use_valid_token_scale`");
        /// Weight of the entropy bonus: the mean entropy of the trained tokens of each minibatch, whatever the
        /// reduction.
        entropy_coef: f64 = 0.0, source("TRL `entropy_coef`, RLinf `entropy_bonus`"),
            also(&["entropy_bonus", "entropy_coeff"]), at_least(0.0);
        /// After each update, move `entropy_coef` up when its entropy was not above `entropy_target`, down otherwise;
        /// the next update has a bonus only in the first case.
        use_adaptive_entropy: bool = false, trl;
        /// Smallest adaptive coefficient.
        entropy_coef_min: f64 = 0.0, trl, at_least(0.0);
        /// Largest adaptive coefficient.
        entropy_coef_max: f64 = 1.0, trl, at_least(0.0);
        /// Step of the adaptive coefficient.
        entropy_coef_delta: f64 = 0.005, trl, at_least(0.0);
        /// Entropy that the adaptive coefficient aims at, in nats.
        entropy_target: f64 = 0.2, trl, at_least(0.0);
    }

    "Reference policy" {
        /// Weight of the KL penalty against the reference policy; 0 = no reference model in memory.
        beta: f64 = 0.0, trl, also(&["kl_beta", "kl_loss_coef"]), at_least(0.0);
        /// Estimator of the penalty.
        kl_estimator: Option<KlEstimator> = None,
            absent("k3 in the loss, as in DeepSeekMath and TRL; k1 with `use_kl_in_reward`, which is PPO's"),
            source("verl `kl_loss_type`, RLinf `kl_penalty_type`"), also(&["kl_loss_type", "kl_penalty_type"]);
        /// Multiply the KL estimate in the loss by the importance ratio. Its gradient is then that of the divergence,
        /// also after several updates. Absent, the factor depends on the estimator: the token's ratio for k1 and k3,
        /// the value of that ratio without its gradient for k2, mse, k1+ and k3+, and none for abs, of which no form
        /// has that gradient. `importance_sampling_level` does not matter then. `true` is TRL's form, for k1 and k3
        /// only: the factor is the ratio of the policy term, of the sequence where that level is `sequence`. `false`
        /// adds the estimate as it is, as verl and RLinf do.
        use_bias_correction_kl: Option<bool> = None, absent("the factor of the estimator"), trl;
        /// Subtract the penalty from each token's reward (PPO) instead of adding it to the loss (GRPO).
        use_kl_in_reward: bool = false, source("verl `use_kl_in_reward`");
        /// Weight of a penalty in the loss on the KL divergence from the policy that the step began with, of π from
        /// π_old (PPO-penalty); 0 = none. It holds back what clipping does not, and needs no reference model. Without
        /// effect in a step of one optimiser update.
        old_policy_kl_coef: f64 = 0.0, source("Schulman et al. 2017, PPO, eq. 8"), at_least(0.0);
        /// The KL per token that `old_policy_kl_coef` aims at: the coefficient is halved after a step whose KL is below
        /// 2/3 of this target, and doubled after one whose KL is above 3/2 of it.
        old_policy_kl_target: Option<f64> = None, absent("the weight is constant"),
            source("Schulman et al. 2017, PPO, section 4, d_targ"), above(0.0);
        /// How the penalty in the reward is weighted over time.
        kl_controller: KlController = KlController::Fixed, source("verl `kl_ctrl.type`");
        /// KL per token that the adaptive controller aims at.
        kl_target: f64 = 0.1, source("verl `kl_ctrl.target_kl`"), also(&["target_kl"]), above(0.0);
        /// Completions over which the adaptive controller acts.
        kl_horizon: f64 = 10_000.0, source("verl `kl_ctrl.horizon`"), above(0.0);
        /// Move the reference policy towards the policy every `ref_model_sync_steps` steps.
        sync_ref_model: bool = false, trl;
        /// Share of the policy in the new reference.
        ref_model_mixup_alpha: f64 = 0.6, trl, at_least(0.0), at_most(1.0);
        /// Steps (generation batches) between two moves of the reference; in TRL, optimiser updates.
        ref_model_sync_steps: u64 = 512, trl, at_least(1.0);
    }

    "Mismatch between sampler and learner" {
        /// Weigh the policy term by the ratio of the learner's to the sampler's probability.
        importance_sampling_correction: bool = true, source("TRL `vllm_importance_sampling_correction`"),
            also(&["vllm_importance_sampling_correction"]);
        /// What that ratio is taken over, and what happens outside its bounds.
        importance_sampling_mode: ImportanceSamplingMode = ImportanceSamplingMode::SequenceMask,
            source("TRL `vllm_importance_sampling_mode`"), also(&["vllm_importance_sampling_mode"]);
        /// Upper bound of the ratio; inf = none.
        importance_sampling_clip_max: f64 = 3.0, source("TRL `vllm_importance_sampling_clip_max`"),
            also(&["vllm_importance_sampling_clip_max"]), above(0.0), or_infinite;
        /// Lower bound of the ratio.
        importance_sampling_clip_min: Option<f64> = None, absent("none"),
            source("TRL `vllm_importance_sampling_clip_min`"), also(&["vllm_importance_sampling_clip_min"]),
            at_least(0.0);
        /// Divide the weights by their mean over the generation batch, after bounding their logs to ±20.
        importance_sampling_batch_normalize: bool = false, source("verl `rollout_is_batch_normalize`");
        /// Clip against the policy that the step began with and weigh by its distance from the one that sampled (the
        /// decoupled objective); false = clip against the sampler's log-probs.
        decoupled_objective: bool = true, source("AReaL `use_decoupled_loss`"), also(&["use_decoupled_loss"]);
    }

    "Optimiser" {
        /// Peak learning rate of AdamW.
        learning_rate: f64 = 1e-6, trl, at_least(0.0);
        /// Schedule after the warm-up.
        lr_scheduler_type: LrSchedulerType = LrSchedulerType::Linear, trl;
        /// Settings of the schedule, by the names of transformers, as in `{ min_lr_rate = 0.1 }`: each schedule below
        /// says which it has.
        lr_scheduler_kwargs: Option<JsonTable> = None, absent("those of transformers"), trl;
        /// Optimiser updates (not steps) of warm-up, as in TRL; wins over `warmup_ratio`. A number below 1 is
        /// `warmup_ratio`.
        warmup_steps: u64 = 0, trl, share("warmup_ratio");
        /// Share of all updates spent warming up.
        warmup_ratio: f64 = 0.0, trl, at_least(0.0), at_most(1.0);
        /// Decay of AdamW's first moment (β₁).
        adam_beta1: f64 = 0.9, trl, at_least(0.0), below(1.0);
        /// Decay of AdamW's second moment (β₂).
        adam_beta2: f64 = 0.999, trl, at_least(0.0), below(1.0);
        /// What AdamW adds to the root of the second moment (ε).
        adam_epsilon: f64 = 1e-8, trl, above(0.0);
        /// Decoupled weight decay on matrices.
        weight_decay: f64 = 0.0, trl, at_least(0.0);
        /// Largest global gradient norm; 0 = no clipping.
        max_grad_norm: f64 = 1.0, trl, also(&["grad_clip"]), at_least(0.0);
    }

    "Guard" {
        /// What is done when a run is in trouble, as a list of `sign=action`, looked at before the weights are moved.
        /// Signs: `non_finite`, `mismatch`, `gradient_spike`, `kl`, `entropy_gone`, `truncated`, `equal_groups`,
        /// `reward_failures`; actions: `warn`, `lower_learning_rate`, `skip_step`, `roll_back`, `stop`.
        /// `mismatch=skip_step:above=0.01:steps=2` also says from where on (for entropy_gone `below`), and how many
        /// steps in a row; docs/guard.md has the usual figures.
        guard: Vec<String> = Vec::new();
        /// What `lower_learning_rate` multiplies the learning rate with, each time.
        guard_learning_rate_factor: f64 = 0.5, above(0.0), below(1.0);
        /// How often a run may go back to an earlier checkpoint before it ends with an error.
        guard_max_roll_backs: u32 = 3, keeps_results;
    }

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
        /// AVX512_BF16) takes less memory and samples faster; the price is a `mismatch_kl` above 0, larger with `int8`,
        /// which the importance correction answers, for long completions best token by token
        /// (`importance_sampling_mode` token_truncate).
        rollout_dtype: RolloutDtype = RolloutDtype::Auto;
        /// What the sampler stores keys and values as. `int8` takes a quarter of their memory and samples long
        /// completions faster with VNNI, `bf16` takes half and is for AVX512_BF16; the price is a `mismatch_kl` above
        /// 0, which the importance correction answers.
        kv_dtype: KvDtype = KvDtype::Auto;
        /// What computes the sampler's model on the CPU: `packed` is faster. The completions of the two differ by
        /// rounding.
        rollout_kernels: Kernels = Kernels::Packed;
        /// For models with experts: the sampler's choices of experts travel with its completions. The learner compares
        /// them with its own (`router_agreement`), or computes with them (R3), which keeps the two alike where rounding or
        /// newer weights would choose otherwise. Takes memory and two bytes for each choice of each token.
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
        /// 16384.
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
        /// Share of the prompts that a second worker, or this host, completes again. A worker whose tokens or log-probs
        /// differ is dropped, and its completions that no step has used are made again. A larger share finds a wrong
        /// worker sooner.
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
        /// `output_dir`.
        resume_from_checkpoint: Option<String> = None, absent("from the beginning"), trl, keeps_results;
    }
}
