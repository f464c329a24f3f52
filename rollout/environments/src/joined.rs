//! The listed tools and the environment of a row, as one environment.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, Value};

use crate::{
    Failure,
    environment::{BoxFuture, Environment, Opening, Reply, Step, Turn},
    reply,
};

/// Several environments, each with tools of its own. Texts of their openings follow each other; rewards of a turn are
/// summed; the reward at the end is that of the first part that gives one.
pub struct Joined {
    parts: Vec<Box<dyn Environment>>,
    /// The part that has a tool.
    routes: Arc<HashMap<String, usize>>,
}

impl Joined {
    /// Joins parts. `routes` has the part of each tool.
    pub fn new(parts: Vec<Box<dyn Environment>>, routes: Arc<HashMap<String, usize>>) -> Self {
        Self { parts, routes }
    }
}

impl Environment for Joined {
    fn init(&mut self, row: &Map<String, Value>) -> BoxFuture<'_, Result<Opening, Failure>> {
        let openings: Vec<_> = self.parts.iter_mut().map(|part| part.init(row)).collect();
        Box::pin(async move {
            let mut text: Option<String> = None;
            for opening in openings {
                if let Some(more) = opening.await?.text {
                    text = Some(text.unwrap_or_default() + &more);
                }
            }
            Ok(Opening { text })
        })
    }

    fn step(&mut self, turn: Turn) -> BoxFuture<'_, Result<Step, Failure>> {
        Box::pin(async move {
            let mut replies: Vec<Option<Reply>> = Vec::new();
            let mut shares = vec![(Vec::new(), Vec::new()); self.parts.len()];
            for (place, call) in turn.calls.into_iter().enumerate() {
                let Some(&part) = self.routes.get(&call.name) else {
                    replies.push(Some(reply::unknown(&call.name)));
                    continue;
                };
                replies.push(None);
                shares[part].0.push(place);
                shares[part].1.push(call);
            }
            let mut joined = Step::default();
            for (part, (places, calls)) in self.parts.iter_mut().zip(shares) {
                if calls.is_empty() {
                    continue;
                }
                let step = part.step(Turn { calls, text: turn.text.clone() }).await?;
                for (place, reply) in places.into_iter().zip(step.replies) {
                    replies[place] = Some(reply);
                }
                joined.reward = joined.reward.zip(step.reward).map(|(a, b)| a + b).or(joined.reward).or(step.reward);
                joined.done |= step.done;
            }
            joined.replies = replies.into_iter().flatten().collect();
            Ok(joined)
        })
    }

    fn score(&mut self) -> BoxFuture<'_, Result<Option<f64>, Failure>> {
        Box::pin(async move {
            for part in &mut self.parts {
                if let Some(reward) = part.score().await? {
                    return Ok(Some(reward));
                }
            }
            Ok(None)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared_chat::turn::ToolCall;

    use super::*;

    /// Answers every call with its own name.
    struct Named(&'static str, Option<f64>);

    impl Environment for Named {
        fn init(&mut self, _: &Map<String, Value>) -> BoxFuture<'_, Result<Opening, Failure>> {
            Box::pin(async { Ok(Opening { text: Some(self.0.to_owned()) }) })
        }

        fn step(&mut self, turn: Turn) -> BoxFuture<'_, Result<Step, Failure>> {
            let replies = turn.calls.iter().map(|call| reply::said(&call.name, self.0.to_owned())).collect();
            Box::pin(async { Ok(Step { replies, reward: self.1, done: self.1.is_some() }) })
        }

        fn score(&mut self) -> BoxFuture<'_, Result<Option<f64>, Failure>> {
            Box::pin(async { Ok(self.1) })
        }
    }

    fn joined(parts: Vec<Named>) -> Joined {
        let routes = [("a", 0), ("b", 1), ("c", 0)].map(|(name, part)| (name.to_owned(), part));
        let boxed = parts.into_iter().map(|part| Box::new(part) as Box<dyn Environment>).collect();
        Joined::new(boxed, Arc::new(routes.into()))
    }

    fn calls(names: &[&str]) -> Turn {
        let call = |name: &&str| ToolCall { name: (*name).to_owned(), arguments: Map::new().into() };
        Turn { calls: names.iter().map(call).collect(), text: String::new() }
    }

    #[tokio::test]
    async fn replies_have_the_order_of_the_calls_whoever_gives_them() {
        let mut joined = joined(vec![Named("one", None), Named("two", Some(0.5))]);
        assert_eq!(joined.init(&Map::new()).await.unwrap().text.as_deref(), Some("onetwo"));
        let step = joined.step(calls(&["b", "a", "no", "c", "b"])).await.unwrap();
        let said: Vec<_> = step.replies.iter().map(|reply| reply.content.clone()).collect();
        assert_eq!(json!(said), json!(["two", "one", "{'error': 'Tool no not found.'}", "one", "two"]));
        assert_eq!((step.reward, step.done), (Some(0.5), true));
        assert_eq!(joined.score().await, Ok(Some(0.5)));
    }

    #[tokio::test]
    async fn rewards_of_a_turn_are_summed_over_the_parts_that_were_called() {
        let mut joined = joined(vec![Named("one", Some(1.0)), Named("two", Some(0.5))]);
        assert_eq!(joined.step(calls(&["a", "b"])).await.unwrap().reward, Some(1.5));
        assert_eq!(joined.step(calls(&["b"])).await.unwrap().reward, Some(0.5));
        assert_eq!(joined.step(calls(&["no"])).await.unwrap().reward, None);
    }
}
