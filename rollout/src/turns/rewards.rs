//! The rewards of environments, as columns behind those of the reward functions.

use serde_json::{Map, Value};
use shared::{
    RewardOutcome,
    config::{EnvironmentFactory, environments::ENVIRONMENT_COLUMN},
};

/// Which column has the reward of a row's environment. Environments of other classes abstain there.
#[derive(Debug, Clone, Default)]
pub struct Rewards {
    /// The column of each name; the only class has no name.
    columns: Vec<(Option<String>, usize)>,
    /// Number of columns.
    width: usize,
    /// Number of raters.
    raters: usize,
}

impl Rewards {
    /// The columns of a run's environments, in the order of [`EnvironmentFactory::entries`].
    #[must_use]
    pub fn of(factory: Option<&EnvironmentFactory>) -> Self {
        let Some(factory) = factory else { return Self::default() };
        let entries = factory.entries();
        let column = |class: &str| entries.iter().position(|entry| entry == class).expect("a class is an entry");
        let columns = factory.classes().map(|(name, class)| (name.map(str::to_owned), column(class))).collect();
        Self { columns, width: entries.len(), raters: 0 }
    }

    /// The same with so many raters.
    #[must_use]
    pub fn with_raters(self, raters: usize) -> Self {
        Self { raters, ..self }
    }

    /// Number of raters: reward functions that ask for `environments`.
    #[must_use]
    pub fn raters(&self) -> usize {
        self.raters
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.width == 0
    }

    /// The outcomes of an episode of a row whose environment has given this reward, or none.
    #[must_use]
    pub fn outcomes(&self, row: &Map<String, Value>, reward: Option<RewardOutcome>) -> Vec<RewardOutcome> {
        let mut outcomes = vec![RewardOutcome::NotApplicable; self.width];
        let named = row.get(ENVIRONMENT_COLUMN).and_then(Value::as_str);
        let is_its = |name: &Option<String>| name.is_none() || name.as_deref() == named;
        if let (Some(reward), Some((_, at))) = (reward, self.columns.iter().find(|(name, _)| is_its(name))) {
            let scores = match &reward {
                RewardOutcome::Score(score) => vec![*score],
                RewardOutcome::Steps(turns) => turns.iter().map(|turn| turn.score).collect(),
                RewardOutcome::NotApplicable | RewardOutcome::Failed(_) => Vec::new(),
            };
            outcomes[*at] = match scores.iter().find(|score| !score.is_finite()) {
                Some(score) => RewardOutcome::Failed(format!("the environment returned {score}")),
                None => reward,
            };
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use RewardOutcome::{Failed, NotApplicable, Score, Steps};
    use serde_json::json;
    use shared::StepScore;

    use super::*;

    fn row(environment: &str) -> Map<String, Value> {
        Map::from_iter([("environment".to_owned(), json!(environment))])
    }

    #[test]
    fn a_reward_stands_in_the_column_of_its_class_and_others_abstain() {
        let one = Rewards::of(Some(&"m.py:Maze".parse().unwrap()));
        assert_eq!(one.outcomes(&row("whatever"), Some(Score(0.5))), [Score(0.5)]);
        assert_eq!(one.outcomes(&Map::new(), None), [NotApplicable]);
        let wrong = || Failed("the environment returned NaN".into());
        assert_eq!(one.outcomes(&Map::new(), Some(Score(f64::NAN))), [wrong()]);
        let turns = |scores: [f64; 2]| Steps(scores.map(|score| StepScore { end: 0, score }).to_vec());
        assert_eq!(one.outcomes(&Map::new(), Some(turns([0.5, f64::NAN]))), [wrong()]);
        assert_eq!(one.outcomes(&Map::new(), Some(turns([0.5, 1.0]))), [turns([0.5, 1.0])]);
        let table = r#"{"a": "m.py:Maze", "b": "m.py:Game", "c": "m.py:Maze"}"#;
        let several = Rewards::of(Some(&table.parse().unwrap()));
        assert_eq!(several.outcomes(&row("b"), Some(Score(2.0))), [NotApplicable, Score(2.0)]);
        assert_eq!(several.outcomes(&row("c"), Some(Score(3.0))), [Score(3.0), NotApplicable]);
        assert!(Rewards::of(None).is_empty() && Rewards::of(None).outcomes(&row("a"), Some(Score(1.0))).is_empty());
    }
}
