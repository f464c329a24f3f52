//! For tests: environments, and conversations that are waited for.

use std::{fs, path::Path, sync::Arc, time::Duration};

use rollout_rewards::RewardInput;
use serde_json::{Map, Value, json};
use shared::config::{EnvironmentFactory, RewardHost, TrainConfig};
use shared_chat::turn::{Reply, ToolCall};

use crate::{Environments, Event, Failure, Opening, Rating, Sample, Sources, StartError, Step, Turn};

/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sources in a folder, without any entries.
pub fn sources(dir: &Path) -> Sources {
    let host = RewardHost { dir: dir.to_owned(), ..TrainConfig::default().reward_host() };
    Sources {
        tools: Vec::new(),
        environment_factory: None,
        raters: Vec::new(),
        host,
        timeout: Duration::from_secs(20),
        reward_timeout: Duration::from_secs(20),
    }
}

/// Checks that it has failed in this way, in a message with these words.
pub fn fails(result: Result<impl std::fmt::Debug, Failure>, kind: &str, words: &[&str]) {
    let failure = result.unwrap_err();
    assert_eq!(failure.kind(), kind, "{failure}");
    for word in words {
        assert!(failure.to_string().contains(word), "{word}: {failure}");
    }
}

/// A folder with one file, `e.py`.
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// The folder.
    pub fn with(text: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        fs::write(folder.path().join("e.py"), text).unwrap();
        folder
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Environments with these functions of the file, and this class of it.
    pub fn start(&self, tools: &[&str], class: Option<&str>) -> Result<Environments, StartError> {
        self.start_with(tools, class, |_| {})
    }

    /// As [`Folder::start`], with other options.
    pub fn start_with(
        &self,
        tools: &[&str],
        class: Option<&str>,
        change: impl FnOnce(&mut Sources),
    ) -> Result<Environments, StartError> {
        let mut sources = sources(self.path());
        sources.tools = tools.iter().map(|name| format!("e.py:{name}")).collect();
        sources.environment_factory = class.map(|name| EnvironmentFactory::One(format!("e.py:{name}")));
        change(&mut sources);
        Environments::start(&sources)
    }
}

/// A sample of the group `tag`.
pub fn sample(tag: u64, index: u32) -> Sample {
    Sample { tag, index }
}

/// A row of the dataset.
pub fn row(row: Value) -> Arc<Map<String, Value>> {
    Arc::new(row.as_object().unwrap().clone())
}

/// A turn with these calls.
pub fn turn(calls: &[(&str, Value)]) -> Turn {
    let call = |(name, arguments): &(&str, Value)| ToolCall { name: (*name).to_owned(), arguments: arguments.clone() };
    Turn { calls: calls.iter().map(call).collect(), text: String::new() }
}

impl Environments {
    /// The next event.
    pub fn event(&self) -> (Sample, Event) {
        self.events().recv_timeout(PATIENCE).expect("an event")
    }

    /// The next event, which must be one of this sample.
    fn event_of(&self, sample: Sample) -> Event {
        let (other, event) = self.event();
        assert_eq!(other, sample);
        event
    }

    /// Opens a conversation and waits.
    pub fn opened(&self, sample: Sample, columns: Value) -> Result<Option<String>, Failure> {
        self.open(sample, row(columns));
        match self.event_of(sample) {
            Event::Opened(Opening { text }) => Ok(text),
            Event::Failed(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    /// Runs a turn and waits.
    pub fn stepped(&self, sample: Sample, calls: &[(&str, Value)]) -> Result<Step, Failure> {
        self.step(sample, turn(calls));
        match self.event_of(sample) {
            Event::Stepped(step) => Ok(step),
            Event::Failed(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    /// The reply to one call.
    pub fn reply(&self, sample: Sample, name: &str, arguments: Value) -> Result<Reply, Failure> {
        self.stepped(sample, &[(name, arguments)]).map(|step| step.replies.into_iter().next().expect("a reply"))
    }

    /// The text of the reply to one call.
    pub fn said(&self, sample: Sample, name: &str, arguments: Value) -> String {
        self.reply(sample, name, arguments).unwrap().content.as_str().unwrap().to_owned()
    }

    /// The reward at the end.
    pub fn scored(&self, sample: Sample) -> Result<Option<f64>, Failure> {
        self.score(sample);
        match self.event_of(sample) {
            Event::Scored(reward) => Ok(reward),
            Event::Failed(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    /// What the raters say of open conversations, in their order.
    pub fn rated(&self, samples: &[Sample], input: RewardInput) -> Vec<Rating> {
        self.rate(samples.to_vec(), input);
        let rating = |sample: &Sample| match self.event_of(*sample) {
            Event::Rated(rating) => rating,
            other => panic!("{other:?}"),
        };
        samples.iter().map(rating).collect()
    }

    /// The names of a row's tools, in order.
    pub fn names(&self, columns: Value) -> Vec<String> {
        let row = row(columns);
        let names = self.tools(&row).unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned());
        names.collect()
    }
}

/// No arguments.
pub fn nothing() -> Value {
    json!({})
}
