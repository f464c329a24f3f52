//! `rollout chat`: a conversation with a model in the terminal.

mod conversation;
mod lines;
mod talk;

use std::{
    io::{self, IsTerminal},
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context, ensure};
use shared::{SamplingParams, process::command_line::tell_warnings};
use signal_hook::{consts::SIGINT, flag};

use self::{conversation::Conversation, lines::Lines, talk::Talk};
use super::{
    flags::{BatchingFlags, ModelFlag, SamplingFlags, SystemFlag, TemplateFlags},
    model,
    printed::{Out, ReaderGone},
};
use crate::{engine::EngineOptions, generate};

/// Tokens of the whole conversation where --max-model-len does not say: their keys and values take memory.
const USUAL_LENGTH: usize = 4096;
/// States whose keys and values are held: that of the turn before, and that which the turn leaves.
const KEPT_STATES: usize = 2;

/// Flags of `rollout chat`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model.
    #[command(flatten)]
    pub named: ModelFlag,
    /// What the system says.
    #[command(flatten)]
    pub system: SystemFlag,
    /// How messages are rendered.
    #[command(flatten)]
    pub template: TemplateFlags,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// Sizes and resources.
    #[command(flatten)]
    pub batching: BatchingFlags,
}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sampling = args.sampling.params(SamplingParams::default().temperature)?;
    let model = args.template.model(&args.named)?;
    let tokenizer = args.template.tokenizer(model.dir())?;
    ensure!(
        tokenizer.template().is_some(),
        "--model {}: has no chat template, so it knows no turns; name one with --chat-template, or complete a text \
         with `tandem generate --prompt TEXT`",
        args.named.model.display()
    );
    tell_warnings(model.dir().remarks_on_generation());
    args.system.tell_of_system_prompt(&model);
    let limit = model::limit(&model)?;
    let options = args.batching.engine_options(1, USUAL_LENGTH, limit)?;
    let options = EngineOptions { kept_states: KEPT_STATES, ..options };
    let (mut engine, _) = args.batching.engine(&model, options)?;
    let room = engine.options().max_model_len;
    // Until here, Ctrl-C ends the program.
    let interrupted = Arc::new(AtomicBool::new(false));
    // It does so again if the one before is not heard yet: a long prefill, or a reader of stdout who does not read.
    // This comes first, so that it sees the flag as the one before has left it.
    flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, interrupted.clone()).context("Ctrl-C")?;
    flag::register(SIGINT, interrupted.clone()).context("Ctrl-C")?;
    let conversation = Conversation::new(tokenizer, args.system.system_prompt.clone());
    let lines = Lines::of(io::stdin()).context("a thread for stdin")?;
    let out = Out::new(io::stdout(), io::stdout().is_terminal());
    let is_terminal = io::stdin().is_terminal();
    let mut talk = Talk::new(conversation, lines, out, sampling, room, limit, interrupted, is_terminal);
    match generate::drive(&mut engine, &mut talk) {
        Err(error) if error.is::<ReaderGone>() => Ok(()),
        ended => ended,
    }
}
