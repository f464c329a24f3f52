//! What is learned from: rows and the model, rewards, sampling, tools and environments.

/// Hands the sections of this file on to the next macro of the list, behind those that came before.
macro_rules! data {
    ($next:ident $(, $rest:ident)*; $($before:tt)*) => { $next! { $($rest),*; $($before)*

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
        system_prompt: Option<String> = None, absent("none"), or_empty;
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
        /// Make tokens that have appeared less likely: fewer loops, but also fewer rightful repeats; 1 = off, and the
        /// only value in training, where the reward function `repetition_penalty` punishes repetition.
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
            source("TRL `vllm_structured_outputs_regex`"), or_empty;
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
        /// they take, built-in ones as `builtin:calculator`, those of a program as `command:./my_tools`, and those of a
        /// server as `mcp:http://HOST/mcp`. A completion is then a conversation of several turns, and its replies count
        /// for `max_completion_length`. docs/agents.md has the details. Processes, permissions and limits are those of
        /// reward functions (`reward_python`, `reward_network` and the like).
        tools: Vec<String> = Vec::new(), trl;
        /// The class of each conversation's own environment, as `my_env.py:Maze` or `builtin:maze`: its public methods
        /// are tools, and its `get_reward` is one more reward with the weight 1. A program in any language is one as
        /// `command:./my_env`, and one on a server as `openenv:ws://HOST:PORT`. A table of names and environments gives
        /// each row the one that its column `environment` names.
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
        /// sequence. As many are begun beyond `max_num_seqs`: more of them leave fewer slots empty at the end of a
        /// step, and each takes longer. Beyond that those that have waited longest are dropped: their context is
        /// computed again, to the same bits. With the packed kernels.
        max_kept_states: Option<usize> = None, absent("as many as `max_num_seqs`"), keeps_results;
        /// A command line for `/bin/sh`, started once for each completion: the program of an agent, which asks the
        /// policy over HTTP in OpenAI's forms. It gets its row as JSON on its standard input, and `OPENAI_BASE_URL` and
        /// `OPENAI_API_KEY` in its environment. Or a server of verifiers 0.4, as `verifiers:tcp://HOST:PORT`, which
        /// plays an episode for each completion. Its reward has the weight 1. The sampler is then `rollout-serve`.
        agent: Option<String> = None, absent("no agent");
        /// Agents that run at once. More keep the sampler busy while agents work; each is a process of its own, or an
        /// episode of a server.
        max_concurrent_agents: u32 = 32, at_least(1.0), at_most(4096.0), because("each has a process and a thread");
        /// Seconds that an agent may take in all. A completion whose agent is late has no reward and is not trained on.
        /// More is kinder to slow agents, and a hanging one holds its group up for longer.
        agent_timeout: f64 = 600.0, above(0.0), at_most(YEAR), because("seconds, at most a year");
    }

    } };
}
pub(super) use data;
