//! What a group carries for people: the other columns of its row, and what reward functions log beside their scores.
//!
//! No reward and no gradient depends on it. Everything is bounded here, because it crosses the channel with its group
//! and is written with each completion.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Most columns of a row, and most columns that reward functions log of a group. Others are left out.
pub const MOST_COLUMNS: usize = 16;
/// Most metrics that reward functions log of a group.
pub const MOST_METRICS: usize = 64;
/// Characters of a value; longer ones are cut, and end with `…`. A worked solution fits. The tests of a programming
/// task may have megabytes, and would be written once for each completion.
pub const MOST_CHARACTERS: usize = 2_000;
/// Characters of a name; what has a longer one is left out.
const LONGEST_NAME: usize = 200;
/// Columns that are kept before others: those with the right answer.
const FIRST: [&str; 2] = ["answer", "solution"];

/// A value for people, as JSON: a frame cannot hold values of any type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note(String);

impl Note {
    /// A value, cut if it is long. Of a long list or mapping, the beginning of its JSON is kept as a text.
    #[must_use]
    pub fn of(value: &Value) -> Self {
        let whole = value.to_string();
        let short = match value {
            Value::String(text) => cut(text),
            _ => cut(&whole),
        };
        Self(short.map_or(whole, |short| Value::String(short).to_string()))
    }

    /// The value; null for a note that is no JSON.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

/// A text that is too long, cut; none for others.
fn cut(text: &str) -> Option<String> {
    text.char_indices().nth(MOST_CHARACTERS).map(|(end, _)| format!("{}…", &text[..end]))
}

fn is_short(name: &str) -> bool {
    name.chars().nth(LONGEST_NAME).is_none()
}

/// The notes of a group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Notes {
    /// The other columns of its row, in their order.
    pub columns: Vec<(String, Note)>,
    /// What reward functions log.
    pub logged: Logged,
}

impl Notes {
    /// Those of a row with these columns, of which nothing is logged yet.
    #[must_use]
    pub fn of_row(columns: &Map<String, Value>) -> Self {
        let is_first = |name: &str| FIRST.contains(&name);
        let first = columns.iter().filter(|(name, _)| is_first(name));
        let others = columns.iter().filter(|(name, _)| !is_first(name) && is_short(name));
        let columns = first.chain(others).take(MOST_COLUMNS).map(|(name, value)| (name.clone(), Note::of(value)));
        Self { columns: columns.collect(), logged: Logged::default() }
    }

    /// Memory that they take, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let columns = self.columns.iter().map(|(name, note)| name.len() + note.0.len());
        let extra =
            self.logged.extra.iter().flat_map(|(_, values)| values).map(|note| size_of::<Note>() + note.0.len());
        size_of::<Self>() + columns.sum::<usize>() + extra.sum::<usize>() + size_of_val(self.logged.metrics.as_slice())
    }
}

/// What reward functions log of the completions of a group beside their scores (TRL's `log_extra` and `log_metric`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Logged {
    /// Columns of the table of completions, each with a value for each completion.
    extra: Vec<(String, Vec<Note>)>,
    /// Metrics, each with the sum of its values and their number.
    metrics: Vec<(String, f64, u32)>,
}

impl Logged {
    /// Adds a column with a value for each completion, in the place of an earlier one of that name.
    pub fn set_extra(&mut self, column: &str, values: Vec<Note>) {
        let has_room = self.extra.len() < MOST_COLUMNS && is_short(column);
        match self.extra.iter_mut().find(|(name, _)| name == column) {
            Some((_, earlier)) => *earlier = values,
            None if has_room => self.extra.push((column.to_owned(), values)),
            None => {}
        }
    }

    /// Adds a value of a metric. One that is not finite is left out.
    pub fn add_metric(&mut self, metric: &str, value: f64) {
        self.add_metrics(metric, value, 1);
    }

    fn add_metrics(&mut self, metric: &str, sum: f64, values: u32) {
        if !sum.is_finite() {
            return;
        }
        let has_room = self.metrics.len() < MOST_METRICS && is_short(metric) && !metric.is_empty();
        match self.metrics.iter_mut().find(|(name, ..)| name == metric) {
            Some((_, known, number)) => (*known, *number) = (*known + sum, number.saturating_add(values)),
            None if has_room => self.metrics.push((metric.to_owned(), sum, values)),
            None => {}
        }
    }

    /// Adds what another function has logged of the same completions.
    pub fn extend(&mut self, other: Self) {
        other.extra.into_iter().for_each(|(column, values)| self.set_extra(&column, values));
        other.metrics.into_iter().for_each(|(metric, sum, values)| self.add_metrics(&metric, sum, values));
    }

    /// What was logged of some completions of a group, with the place of each in the group. The others have null.
    #[must_use]
    pub fn at(mut self, places: &[usize]) -> Self {
        let length = places.iter().max().map_or(0, |last| last + 1);
        for (_, values) in &mut self.extra {
            let mut placed = vec![Note::of(&Value::Null); length];
            places.iter().zip(values.drain(..)).for_each(|(&place, value)| placed[place] = value);
            *values = placed;
        }
        self
    }

    /// The values of the columns for a completion, given by its place in the group.
    pub fn extra_of(&self, completion: usize) -> impl Iterator<Item = (&str, &Note)> {
        self.extra.iter().filter_map(move |(name, values)| Some((name.as_str(), values.get(completion)?)))
    }

    /// The mean of each metric over all values that were logged of some groups.
    #[must_use]
    pub fn means<'a>(groups: impl IntoIterator<Item = &'a Self>) -> BTreeMap<&'a str, f64> {
        let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for (name, sum, values) in groups.into_iter().flat_map(|logged| &logged.metrics) {
            let (known, number) = sums.entry(name).or_default();
            (*known, *number) = (*known + sum, *number + f64::from(*values));
        }
        sums.into_iter().map(|(name, (sum, values))| (name, sum / values)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_right_answer_comes_first_and_long_values_are_cut_with_a_mark() {
        let mut row = Map::new();
        for column in 0..MOST_COLUMNS {
            row.insert(format!("column {column}"), column.into());
        }
        row.insert("x".repeat(LONGEST_NAME + 1), "of a name that is too long".into());
        row.insert("answer".into(), "é".repeat(MOST_CHARACTERS + 1).into());
        let columns = Notes::of_row(&row).columns;
        assert_eq!((columns.len(), &*columns[0].0, &*columns[1].0), (MOST_COLUMNS, "answer", "column 0"));
        let answer = columns[0].1.value();
        assert_eq!(answer, format!("{}…", "é".repeat(MOST_CHARACTERS)));
        let list = Note::of(&json!([1, "two", null]));
        assert_eq!(list.value(), json!([1, "two", null]));
        let long = Note::of(&json!(vec!["word"; MOST_CHARACTERS])).value();
        assert!(long.as_str().is_some_and(|text| text.starts_with("[\"word\",") && text.ends_with('…')), "{long}");
    }

    #[test]
    fn metrics_are_means_over_every_value_of_every_group_and_columns_belong_to_completions() {
        let note = |text: &str| Note::of(&text.into());
        let (mut one, mut other) = (Logged::default(), Logged::default());
        one.add_metric("accuracy", 1.0);
        one.add_metric("accuracy", 0.0);
        one.add_metric("broken", f64::NAN);
        one.set_extra("guess", vec![note("4"), note("5")]);
        let mut of_another_function = Logged::default();
        of_another_function.add_metric("accuracy", 1.0);
        of_another_function.set_extra("guess", vec![note("four"), note("five")]);
        one.extend(of_another_function);
        other.add_metric("accuracy", 0.0);
        assert_eq!(Logged::means([&one, &other]), BTreeMap::from([("accuracy", 0.5)]));
        assert_eq!(one.extra_of(1).collect::<Vec<_>>(), [("guess", &note("five"))]);
        assert_eq!(one.extra_of(2).count(), 0);
    }
}
