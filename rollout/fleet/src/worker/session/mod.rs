//! What a worker does for one coordinator after the other.
//!
//! | file | subject |
//! |---|---|
//! | `opening` | from a coordinator's first orders to an engine that can sample |
//! | `leases` | what is to be made and scored, and the answers |
//!
//! Here are the loop and what orders change of it. The weights come through an [`EditionReceiver`], which the follower
//! drives.

mod leases;
mod opening;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rollout::{
    engine::{Engine, Output},
    generate::{self, Work, drive, follower::WeightFollower},
};
use shared::channel::fleet::{Orders, RunFacts};

use self::{
    leases::Leases,
    opening::{Host, Opened, first_orders, open, refuse},
};
use super::{Client, Left, Scratch, WorkerOptions, receiver::EditionReceiver};

/// How long orders are waited for when nothing is to be done.
const IDLE: Duration = Duration::from_millis(20);
/// The same while something else is under way.
const SHORT: Duration = Duration::from_millis(2);

/// Works until the run is over.
pub(super) fn work(
    client: &Client,
    scratch: &Scratch,
    options: &WorkerOptions,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Left> {
    tracing::info!("worker {} calls the coordinator", options.name);
    let host = Host { client, scratch, options, stop };
    let mut orders = None;
    loop {
        let Some(first) = first_orders(client, orders.take(), stop)? else { return Ok(Left::BySignal) };
        if first.finished {
            return Ok(Left::RunOver);
        }
        let facts = first.facts.clone().expect("they were waited for");
        let next = match open(host, facts, first)? {
            Opened::Session(mut session, mut engine) => drive(&mut *engine, &mut *session)?,
            Opened::Next(next) => next,
        };
        match next {
            Next::Left(left) => return Ok(left),
            Next::OtherRun(next) => orders = Some(*next),
        }
    }
}

/// What comes after a session.
enum Next {
    Left(Left),
    /// The coordinator has begun anew with other facts.
    OtherRun(Box<Orders>),
}

struct Session<'a> {
    client: &'a Client,
    options: &'a WorkerOptions,
    stop: &'a AtomicBool,
    facts: RunFacts,
    /// The coordinator that its leases are of.
    coordinator: u64,
    weights: WeightFollower,
    receiver: EditionReceiver<'a>,
    leases: Leases<'a>,
    /// Tokens that were decoded before the step at hand.
    decoded: u64,
}

impl Session<'_> {
    /// Takes orders; something comes after this session where they say so.
    fn obey(&mut self, engine: &mut Engine, orders: Orders) -> anyhow::Result<Option<Next>> {
        refuse(&orders)?;
        if orders.finished {
            tracing::info!("the run is over");
            return Ok(Some(Next::Left(Left::RunOver)));
        }
        if orders.coordinator != self.coordinator {
            if orders.facts.as_ref() != Some(&self.facts) {
                engine.abort_all();
                return Ok(orders.facts.is_some().then(|| Next::OtherRun(Box::new(orders))));
            }
            tracing::info!("the coordinator has begun anew");
            self.coordinator = orders.coordinator;
            engine.abort_all();
            self.leases.clear();
            self.client.report(|report| {
                report.coordinator = orders.coordinator;
                report.held.clear();
                report.made.clear();
            });
        }
        self.receiver.want(orders.edition);
        self.leases.obey(engine, &orders.leases, orders.granted);
        Ok(None)
    }

    /// Starts leases that the weights in use are for.
    fn begin(&mut self, engine: &mut Engine) -> anyhow::Result<()> {
        if self.weights.takes_groups(engine) {
            self.leases.begin(engine, engine.version())?;
        }
        Ok(())
    }

    /// Waits as long as a worker of the wanted rate would have worked.
    fn hold_back(&self, begun: Instant, tokens: u64) {
        if let Some(rate) = self.options.tokens_per_second {
            let whole = Duration::from_secs_f64(tokens as f64 / rate);
            thread::sleep(whole.saturating_sub(begun.elapsed()));
        }
    }
}

impl Work<Engine> for Session<'_> {
    type End = Next;

    fn feed(&mut self, engine: &mut Engine) -> anyhow::Result<generate::Next<Next>> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(generate::Next::End(Next::Left(Left::BySignal)));
        }
        let idle = engine.is_idle();
        let busy = self.weights.pending() || self.receiver.is_behind() || self.leases.scoring() > 0;
        let wait = match (idle, busy) {
            (true, false) => IDLE,
            (true, true) => SHORT,
            (false, _) => Duration::ZERO,
        };
        let begun = Instant::now();
        if let Some(orders) = self.client.orders(wait)?
            && let Some(next) = self.obey(engine, orders)?
        {
            return Ok(generate::Next::End(next));
        }
        if idle {
            self.client.update(|report| report.work.idle_s += begun.elapsed().as_secs_f64());
        }
        self.weights.follow(engine, &mut self.receiver)?;
        self.begin(engine)?;
        self.decoded = engine.profile().decode_tokens;
        let can_start = engine.waiting() > 0 && self.weights.lets_start(engine);
        Ok(if engine.running() == 0 && !can_start { generate::Next::Idle } else { generate::Next::Advance })
    }

    fn take(&mut self, engine: &mut Engine, outputs: Vec<Output>, begun: Instant) -> anyhow::Result<()> {
        let finished: Vec<_> = outputs.into_iter().filter_map(Output::ended).collect();
        let tokens = engine.profile().decode_tokens - self.decoded + finished.len() as u64;
        self.hold_back(begun, tokens);
        self.leases.answer(finished, tokens, begun)?;
        self.leases.answer_scored();
        Ok(())
    }

    /// What waits is the next look at orders.
    fn idle(&mut self, _: &mut Engine) -> anyhow::Result<()> {
        self.leases.answer_scored();
        Ok(())
    }
}
