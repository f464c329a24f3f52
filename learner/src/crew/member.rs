//! A further rank: comes to the first one, and follows its orders until it is let go.

use std::{
    io::{self, BufRead, Read, Write},
    path::PathBuf,
    process,
    sync::Arc,
    thread,
    time::Duration,
};

use shared::{
    ModelDir, Placed, PolicyVersion,
    channel::frame,
    config::{
        layers::{self, Overrides},
        torchrun::Torchrun,
    },
};

use super::{content::agree_on_model, first::Order, meeting::come};
use crate::{
    checkpoint::{self, help_to_save},
    cores,
    device::{self, RankHere},
    error::LearnerError,
    ranks::{CONNECT, Gloo, Ranks, SIGN, Signs, TorchStore, Watch},
    step::StepBatch,
    trained::Among,
};

/// Largest group that a rank takes.
const MOST_BYTES: u64 = 1 << 32;

/// Where a rank finds the first one.
#[derive(Debug, Clone)]
pub enum Rendezvous {
    /// The first rank has started this one, on the same host.
    Child {
        /// The file that they meet at.
        meeting: PathBuf,
        /// Which rank it is.
        rank: usize,
    },
    /// Others have started it.
    Told(Torchrun),
}

impl Rendezvous {
    /// Its number among the ranks on its host, if the learner has `count` ranks.
    fn here(&self, count: usize) -> RankHere {
        match self {
            Self::Child { rank, .. } => RankHere::Of { rank: *rank, count },
            Self::Told(told) => RankHere::Told(told.local_rank),
        }
    }
}

/// Why a rank was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetGo {
    /// The run is over.
    ForGood,
    /// The first rank begins anew.
    Again,
}

/// Serves as a rank of a learner. `overrides` are the options that differ on this host, such as the model's folder.
/// `report` is called after every step.
///
/// # Errors
/// A first rank that does not come within `patience`; the errors of the first rank's steps; a rank that is gone.
pub fn serve(
    place: &Rendezvous,
    overrides: &Overrides,
    patience: Duration,
    report: &mut dyn FnMut(u64),
) -> Result<LetGo, LearnerError> {
    let (rank, host) = match place {
        Rendezvous::Child { rank, .. } => (*rank, "127.0.0.1"),
        Rendezvous::Told(told) => (told.rank, &*told.master_addr),
    };
    let (store, welcome) = come(rank, patience, |patience| match place {
        Rendezvous::Child { meeting, .. } => TorchStore::file(meeting, patience),
        Rendezvous::Told(told) => TorchStore::reach(host, told.master_port, patience),
    })?;
    let damaged = |e| LearnerError::Peer(format!("the first rank's configuration is damaged: {e}"));
    let config = layers::parse(&welcome.config, "run.toml".as_ref(), overrides).map_err(damaged)?;
    let at = [rank, welcome.count];
    let signs = match place {
        Rendezvous::Child { .. } => None,
        Rendezvous::Told(_) => Some(Signs::start(&store, &welcome.prefix, at)?),
    };
    let mut served = || {
        let device = device::open_of_rank(config.learner_device, place.here(welcome.count))?;
        cores::set_threads(Some(welcome.threads));
        let watch = signs.as_ref().map_or_else(Arc::<Watch>::default, Signs::watch);
        let ranks = Arc::new(Gloo::join(&store, &welcome.prefix, at, host, CONNECT, watch)?);
        if signs.is_some() {
            tracing::info!("rank {rank} of the learner's {}, with {} threads", welcome.count, welcome.threads);
            agree_on_model(&*ranks, &config)?;
        }
        let among = Among { ranks: Arc::clone(&ranks) as _, shards: config.shard_optimizer };
        let (mut trainer, _) = checkpoint::open_rank(&config, &ModelDir::open(&config.model)?, None, device, &among)?;
        loop {
            let message = ranks.bytes_of_first(Vec::new())?;
            let mut message = &message[..];
            let mut line = Vec::new();
            message.read_until(b'\n', &mut line)?;
            match serde_json::from_slice(&line)
                .map_err(|e| LearnerError::Peer(format!("the first rank's message is damaged: {e}")))?
            {
                Order::Step { step, groups } => {
                    let groups = (0..groups).map(|_| read_group(&mut message)).collect::<Result<Vec<_>, _>>()?;
                    trainer.step(&StepBatch::new(&groups, &config, PolicyVersion(step)), step)?;
                    report(step + 1);
                }
                Order::LowerLearningRate { factor } => trainer.lower_learning_rate(factor),
                Order::Save => help_to_save(&trainer)?,
                Order::Again => return Ok(LetGo::Again),
                Order::End => return Ok(LetGo::ForGood),
            }
        }
    };
    let served: Result<LetGo, LearnerError> = served();
    if let (Err(error), Some(signs)) = (&served, &signs) {
        signs.leave(&store, &error.to_string());
    }
    served
}

/// Gives a sign of life every second. Once nobody reads it any more, the process ends.
///
/// # Errors
/// When no thread can be started.
pub fn show_life() -> io::Result<()> {
    let show = || {
        while io::stdout().write_all(b".").and_then(|()| io::stdout().flush()).is_ok() {
            thread::sleep(SIGN);
        }
        process::exit(1);
    };
    thread::Builder::new().name("life".into()).spawn(show).map(drop)
}

fn read_group(message: &mut &[u8]) -> Result<Placed, LearnerError> {
    let broken = |e: &dyn std::fmt::Display| LearnerError::Peer(format!("a group from the first rank is damaged: {e}"));
    let mut length = [0; 8];
    message.read_exact(&mut length).map_err(|e| broken(&e))?;
    let length = u64::from_le_bytes(length);
    if length > MOST_BYTES || length > message.len() as u64 {
        return Err(broken(&format_args!("it has {length} bytes")));
    }
    let (frame, rest) = message.split_at(length as usize);
    *message = rest;
    frame::decode(frame).map_err(|e| broken(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_takes_the_gpu_of_its_number_or_of_its_local_rank() {
        let child = Rendezvous::Child { meeting: "ranks".into(), rank: 3 };
        assert_eq!(child.here(4), RankHere::Of { rank: 3, count: 4 });
        let told = Rendezvous::Told(Torchrun {
            rank: 3,
            world_size: 4,
            local_rank: 1,
            local_world_size: 2,
            master_addr: "node-0".into(),
            master_port: 29500,
            agent_listens: false,
        });
        assert_eq!(told.here(4), RankHere::Told(1));
    }
}
