//! torchrun's variables. Tools that start the ranks of a learner (torchrun, Slurm, Kubernetes, ssh) use them to tell
//! each rank its number and the address of the first rank.

use std::env;

use crate::config::TrainConfig;

/// The value with which torchrun's agent says yes.
const YES: &str = "True";

/// The variables of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torchrun {
    /// `RANK`: its number, from 0.
    pub rank: usize,
    /// `WORLD_SIZE`: the number of ranks.
    pub world_size: usize,
    /// `LOCAL_RANK`: its number among the ranks of its host; 0 if absent.
    pub local_rank: usize,
    /// `LOCAL_WORLD_SIZE`: the number of ranks on its host; 1 if absent.
    pub local_world_size: usize,
    /// `MASTER_ADDR`: name or address of the first rank's host.
    pub master_addr: String,
    /// `MASTER_PORT`: the port there.
    pub master_port: u16,
    /// Whether torchrun itself listens there (`TORCHELASTIC_USE_AGENT_STORE`), and not the first rank.
    pub agent_listens: bool,
}

/// Variables that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TorchrunError(String);

impl Torchrun {
    /// The variables of this process; none if `WORLD_SIZE` is absent.
    ///
    /// # Errors
    /// A variable that is missing or has no meaning, by name.
    pub fn from_env() -> Result<Option<Self>, TorchrunError> {
        Self::read(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// The variables of a run's learner, as the first rank; none if it starts the others itself, or is alone.
    ///
    /// # Errors
    /// As [`Self::from_env`]; another number of ranks than `learner_ranks`, another rank than the first.
    pub fn of_run(config: &TrainConfig) -> Result<Option<Self>, TorchrunError> {
        if config.learner_ranks == 1 {
            return Ok(None);
        }
        Self::from_env()?.map(|told| told.check(config.learner_ranks)).transpose()
    }

    /// Ranks of a run's learner on this host.
    #[must_use]
    pub fn ranks_here(config: &TrainConfig) -> u32 {
        let told = Self::of_run(config).ok().flatten();
        told.map_or(config.learner_ranks, |told| u32::try_from(told.local_world_size).unwrap_or(config.learner_ranks))
    }

    /// Threads of each of a run's ranks on this host; absent if the learner's threads are not known.
    #[must_use]
    pub fn threads_of_rank(config: &TrainConfig) -> Option<usize> {
        config.learner_threads.map(|threads| (threads / Self::ranks_here(config) as usize).max(1))
    }

    fn check(self, learner_ranks: u32) -> Result<Self, TorchrunError> {
        let Self { rank, world_size, .. } = self;
        if world_size != learner_ranks as usize {
            return Err(TorchrunError(format!(
                "WORLD_SIZE is {world_size} and `learner_ranks` {learner_ranks}: make them the same, or unset \
                 WORLD_SIZE for ranks on this host alone"
            )));
        }
        if rank != 0 {
            return Err(TorchrunError(format!(
                "RANK is {rank}, and `tandem train` is the first rank of its learner: start this one with `tandem \
                 learner-rank`"
            )));
        }
        Ok(self)
    }

    fn read(value: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, TorchrunError> {
        let Some(world_size) = value("WORLD_SIZE") else { return Ok(None) };
        let needed = |name: &str| {
            value(name).ok_or_else(|| TorchrunError(format!("WORLD_SIZE is {world_size}, and {name} is not set")))
        };
        let told = Self {
            rank: number("RANK", &needed("RANK")?)?,
            world_size: number("WORLD_SIZE", &world_size)?,
            local_rank: value("LOCAL_RANK").map_or(Ok(0), |text| number("LOCAL_RANK", &text))?,
            local_world_size: value("LOCAL_WORLD_SIZE").map_or(Ok(1), |text| number("LOCAL_WORLD_SIZE", &text))?,
            master_addr: needed("MASTER_ADDR")?,
            master_port: number("MASTER_PORT", &needed("MASTER_PORT")?)?,
            agent_listens: value("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|answer| answer == YES),
        };
        if told.rank >= told.world_size {
            let Self { rank, world_size, .. } = told;
            return Err(TorchrunError(format!("RANK is {rank} of WORLD_SIZE {world_size}: ranks count from 0")));
        }
        if told.local_world_size == 0 || told.local_world_size > told.world_size {
            let Self { local_world_size, world_size, .. } = told;
            return Err(TorchrunError(format!("LOCAL_WORLD_SIZE is {local_world_size} of WORLD_SIZE {world_size}")));
        }
        Ok(Some(told))
    }
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, TorchrunError> {
    text.parse().map_err(|_| TorchrunError(format!("{name} is {text:?}, which is no number that it can be")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Torchrun>, String> {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Torchrun::read(value).map_err(|e| e.to_string())
    }

    const NEEDED: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node-0"), ("MASTER_PORT", "29500")];

    #[test]
    fn variables_are_read_and_those_without_meaning_are_named() {
        assert_eq!(read(&[("RANK", "3")]), Ok(None), "not one of several");
        let told = Torchrun {
            rank: 1,
            world_size: 4,
            local_rank: 0,
            local_world_size: 1,
            master_addr: "node-0".into(),
            master_port: 29500,
            agent_listens: false,
        };
        assert_eq!(read(&NEEDED), Ok(Some(told.clone())));
        let with = |more: &[(&str, &str)]| {
            let kept = NEEDED.into_iter().filter(|(name, _)| more.iter().all(|(other, _)| other != name));
            read(&kept.chain(more.iter().copied()).collect::<Vec<_>>())
        };
        let of_torchrun = [("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
        let elastic = Torchrun { local_rank: 1, local_world_size: 2, agent_listens: true, ..told };
        assert_eq!(with(&of_torchrun), Ok(Some(elastic)));
        for (variable, value) in
            [("RANK", "4"), ("RANK", "-1"), ("MASTER_PORT", "70000"), ("LOCAL_WORLD_SIZE", "5"), ("WORLD_SIZE", "two")]
        {
            let error = with(&[(variable, value)]).unwrap_err();
            assert!(error.contains(variable) && error.contains(value), "{error}");
        }
        for missing in ["RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let rest: Vec<_> = NEEDED.into_iter().filter(|(name, _)| *name != missing).collect();
            assert_eq!(read(&rest), Err(format!("WORLD_SIZE is 4, and {missing} is not set")));
        }
    }

    #[test]
    fn a_learner_is_the_first_of_as_many_as_its_run_has() {
        let told = |rank: &str| read(&[&[("RANK", rank)], &NEEDED[1..]].concat()).unwrap().unwrap();
        assert!(told("0").check(4).is_ok());
        let error = told("0").check(2).unwrap_err().to_string();
        assert!(error.contains("WORLD_SIZE is 4") && error.contains("`learner_ranks` 2"), "{error}");
        let error = told("2").check(4).unwrap_err().to_string();
        assert!(error.contains("RANK is 2") && error.contains("`tandem learner-rank`"), "{error}");
    }
}
