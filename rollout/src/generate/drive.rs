//! The loop over a generator. Commands, the pair, the worker and the arbiter all run this one.

use std::{
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use super::Generate;
use crate::engine::Output;

/// How long a generator that can only wait is left alone.
const SHORT_WAIT: Duration = Duration::from_millis(1);

/// How a loop goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<E> {
    /// The generator has something to do.
    Advance,
    /// It has nothing to do: the work waits.
    Idle,
    /// The work is over.
    End(E),
}

/// What is done with a generator between two of its steps.
pub trait Work<G: Generate + ?Sized> {
    /// How it ends.
    type End;

    /// Whatever is due before the next step: above all, requests are begun as long as there is room for them, and
    /// cancelled where nobody wants them any more.
    ///
    /// # Errors
    /// What ends the loop.
    fn feed(&mut self, generator: &mut G) -> anyhow::Result<Next<Self::End>>;

    /// Takes what came of a step that was begun at that time; often that is nothing.
    ///
    /// # Errors
    /// What ends the loop.
    fn take(&mut self, generator: &mut G, outputs: Vec<Output>, begun: Instant) -> anyhow::Result<()>;

    /// Waits until there may be something to do, though not for long: signals and peers are looked at in between.
    ///
    /// # Errors
    /// What ends the loop.
    fn idle(&mut self, generator: &mut G) -> anyhow::Result<()>;
}

/// Works until the work is over.
///
/// # Errors
/// Those of the work, and the generator's when it is of no further use.
pub fn drive<G: Generate + ?Sized, W: Work<G> + ?Sized>(generator: &mut G, work: &mut W) -> anyhow::Result<W::End> {
    loop {
        match work.feed(generator)? {
            Next::Advance => {
                let begun = Instant::now();
                let outputs = generator.advance()?;
                work.take(generator, outputs, begun)?;
            }
            Next::Idle => work.idle(generator)?,
            Next::End(end) => return Ok(end),
        }
    }
}

/// Generates what was begun, until nothing is left of it or `take`, which sees what comes of every step, breaks off.
///
/// # Errors
/// As [`drive`].
pub fn finish<G: Generate + ?Sized>(
    generator: &mut G,
    take: impl FnMut(&mut G, Vec<Output>) -> anyhow::Result<ControlFlow<()>>,
) -> anyhow::Result<()> {
    drive(generator, &mut Begun { take, is_over: false })
}

/// What was begun before the loop.
struct Begun<F> {
    take: F,
    is_over: bool,
}

impl<G: Generate + ?Sized, F> Work<G> for Begun<F>
where
    F: FnMut(&mut G, Vec<Output>) -> anyhow::Result<ControlFlow<()>>,
{
    type End = ();

    fn feed(&mut self, generator: &mut G) -> anyhow::Result<Next<()>> {
        Ok(match self.is_over || generator.is_idle() {
            true => Next::End(()),
            false if generator.waits() => Next::Idle,
            false => Next::Advance,
        })
    }

    fn take(&mut self, generator: &mut G, outputs: Vec<Output>, _: Instant) -> anyhow::Result<()> {
        self.is_over = (self.take)(generator, outputs)?.is_break();
        Ok(())
    }

    fn idle(&mut self, _: &mut G) -> anyhow::Result<()> {
        thread::sleep(SHORT_WAIT);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::Scripted, *};
    use crate::engine::testing::group;

    /// Begins two groups, one after the other, waits twice between them, and keeps a record.
    #[derive(Default)]
    struct Recorded {
        begun: u64,
        waits: usize,
        record: Vec<String>,
    }

    impl Work<Scripted> for Recorded {
        type End = usize;

        fn feed(&mut self, generator: &mut Scripted) -> anyhow::Result<Next<usize>> {
            if !generator.is_idle() {
                return Ok(Next::Advance);
            }
            if self.begun > 0 && self.waits < 2 {
                return Ok(Next::Idle);
            }
            if self.begun == 2 {
                return Ok(Next::End(generator.steps));
            }
            generator.begin(group(self.begun, 2).into())?;
            self.begun += 1;
            Ok(Next::Advance)
        }

        fn take(&mut self, generator: &mut Scripted, outputs: Vec<Output>, begun: Instant) -> anyhow::Result<()> {
            assert!(generator.advanced.is_some_and(|advanced| begun <= advanced), "that is when the step was begun");
            let ended = outputs.into_iter().filter_map(Output::ended);
            let ended: Vec<_> = ended.map(|sequence| (sequence.tag, sequence.sample, sequence.token_ids)).collect();
            self.record.push(format!("{ended:?}"));
            Ok(())
        }

        fn idle(&mut self, _: &mut Scripted) -> anyhow::Result<()> {
            self.waits += 1;
            self.record.push("wait".into());
            Ok(())
        }
    }

    #[test]
    fn a_work_feeds_takes_what_comes_and_waits_where_nothing_is_to_be_done() {
        let mut work = Recorded::default();
        let mut generator = Scripted::new(8, |_, sample| vec![7; 1 + sample as usize]);
        assert_eq!(drive(&mut generator, &mut work).unwrap(), 4, "steps in all");
        assert_eq!(
            work.record,
            ["[(0, 0, [7])]", "[(0, 1, [7, 7])]", "wait", "wait", "[(1, 0, [7])]", "[(1, 1, [7, 7])]"]
        );
    }

    #[test]
    fn what_was_begun_is_finished_unless_somebody_breaks_off() {
        let mut generator = Scripted::new(1, |_, _| vec![7; 3]);
        generator.begin(group(0, 2).into()).unwrap();
        let mut ended = 0;
        let mut count = |_: &mut Scripted, outputs: Vec<Output>| {
            ended += outputs.len();
            Ok(ControlFlow::Continue(()))
        };
        finish(&mut generator, &mut count).unwrap();
        assert_eq!((ended, generator.steps), (2, 6));
        generator.begin(group(1, 2).into()).unwrap();
        finish(&mut generator, |generator, _| {
            Ok(if generator.steps < 10 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })
        .unwrap();
        assert_eq!((generator.steps, generator.is_idle()), (10, false));
    }
}
