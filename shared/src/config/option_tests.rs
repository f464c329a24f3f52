//! Properties of every option, tested over the table itself.

use std::{collections::HashSet, fs};

use crate::config::{OPTIONS, OptionSpec, TrainConfig, ValueKind, layers, option};

fn given(option: &OptionSpec, value: &str) -> Result<TrainConfig, String> {
    layers::load(None, &vec![(option.key.to_owned(), value.to_owned())]).map_err(|error| error.to_string())
}

fn within_bounds(option: &OptionSpec, value: f64) -> Result<(), String> {
    given(option, &value.to_string())?.out_of_bounds().first().map_or(Ok(()), |error| Err(error.to_string()))
}

#[test]
fn every_option_is_described_and_has_a_default_or_must_be_given() {
    let must_be_given: Vec<&str> =
        OPTIONS.iter().filter(|o| o.absent.is_none() && o.default_text().is_none()).map(|o| o.key).collect();
    assert_eq!(must_be_given, ["model", "dataset"]);
    for option in OPTIONS {
        assert!(option.absent.is_none() || option.default_text().is_none(), "{} has two defaults", option.key);
        assert!(option.doc.len() > 10 && option.doc.ends_with('.'), "{}: {}", option.key, option.doc);
        if let ValueKind::Choice(values) = option.kind {
            for value in values {
                assert!(value.doc.ends_with('.'), "{} {}: {}", option.key, value.word, value.doc);
            }
        }
    }
}

#[test]
fn no_spelling_means_two_things() {
    let mut seen = HashSet::new();
    for known in OPTIONS {
        for spelling in [known.key].iter().chain(known.aliases) {
            assert!(seen.insert(*spelling), "{spelling} is there twice");
            assert_eq!(option(spelling).unwrap().key, known.key);
        }
        if let ValueKind::Choice(values) = known.kind {
            let mut words = HashSet::new();
            for value in values {
                for word in [value.word].iter().chain(value.aliases) {
                    assert!(words.insert(*word), "{}: {word} is there twice", known.key);
                    given(known, word).unwrap();
                }
            }
        }
    }
}

/// Numbers on both sides of each bound, as close to it as the option's type allows.
#[test]
fn every_bound_refuses_what_lies_beyond_it() {
    assert!(TrainConfig::default().out_of_bounds().is_empty());
    let mut ends = 0;
    for option in OPTIONS {
        let step = if option.kind == ValueKind::Whole { 1.0 } else { 1e-3 };
        for (end, outwards) in [(option.bounds.low, -step), (option.bounds.high, step)] {
            let Some((end, included)) = end else { continue };
            let beyond = if included { end + outwards } else { end };
            let message = within_bounds(option, beyond).expect_err(option.key);
            assert!(message.starts_with(&format!("`{}` ", option.key)), "{message}");
            within_bounds(option, if included { end } else { end - outwards }).unwrap();
            ends += 1;
        }
        if matches!(option.kind, ValueKind::Number | ValueKind::Numbers) {
            assert!(
                option.bounds.low.is_some() || option.kind == ValueKind::Numbers,
                "{} has no lower bound",
                option.key
            );
            assert!(within_bounds(option, f64::NAN).is_err(), "{}", option.key);
            let infinite = within_bounds(option, f64::INFINITY);
            assert_eq!(infinite.is_ok(), option.bounds.infinite, "{}", option.key);
            let told = |message: &String| message.contains("finite") || option.bounds.high.is_some();
            assert!(infinite.as_ref().err().is_none_or(told), "{}: {infinite:?}", option.key);
        }
    }
    assert!(ends > 70, "only {ends} ends of ranges");
}

#[test]
fn an_empty_text_is_refused_with_the_way_out() {
    let mut texts = 0;
    for option in OPTIONS {
        let empty = match option.kind {
            ValueKind::Text | ValueKind::Path | ValueKind::TextOrTable => "",
            ValueKind::Texts | ValueKind::Paths => r#"["a", ""]"#,
            _ => continue,
        };
        let outcome = given(option, empty).unwrap().problems();
        let words: Vec<String> = outcome.iter().map(ToString::to_string).collect();
        let mine = format!("`{}` ", option.key);
        let refused = words.iter().any(|words| words.starts_with(&mine) && words.contains("leave it out"));
        let missing = words.iter().any(|words| words.starts_with(&mine) && words.contains("is missing"));
        assert_eq!(refused || missing, !option.may_be_empty, "{}: {words:?}", option.key);
        texts += 1;
    }
    assert!(texts > 30, "only {texts} options take texts");
    let of = |key, value| given(option(key).unwrap(), value).unwrap().out_of_bounds()[0].to_string();
    assert!(of("environment_factory", r#"{"maze": ""}"#).starts_with("`environment_factory` is empty"));
    let no_class = "`environment_factory` is empty: fill it, or leave it out (then: no environment)";
    assert_eq!(of("environment_factory", "{}"), no_class);
    assert_eq!(of("eval_dataset", ""), "`eval_dataset` is empty: fill it, or leave it out (then: no evaluation)");
    assert_eq!(of("model_revision", ""), "`model_revision` is empty: fill it, or leave it out (then: main)");
}

/// A value other than the default, as a word of the command line.
fn another(option: &OptionSpec) -> String {
    let default = serde_json::to_value(TrainConfig::default()).unwrap()[option.key].clone();
    match option.kind {
        ValueKind::Flag => (!default.as_bool().unwrap_or(true)).to_string(),
        ValueKind::Whole => (default.as_u64().unwrap_or(1) + 1).to_string(),
        ValueKind::Number => "0.625".to_owned(),
        ValueKind::Text => "a \"quoted\" text\nof two lines".to_owned(),
        ValueKind::Path => "/a folder/file".to_owned(),
        ValueKind::Paths => r#"["/a folder/x,y", "/b"]"#.to_owned(),
        ValueKind::Choice(values) => {
            let other = |value: &&&str| default.as_str() != Some(**value);
            let words: Vec<&str> = values.iter().map(|value| value.word).collect();
            (*words.iter().rev().find(|word| other(word)).unwrap()).to_owned()
        }
        ValueKind::Texts => r#"["a,b", "é\n"]"#.to_owned(),
        ValueKind::Numbers => "-1,0.5,1e-7".to_owned(),
        ValueKind::TextOrTable => r#"{"a": "b.py:B", "c": "d.py:D"}"#.to_owned(),
        ValueKind::Table => r#"{"a": [false, null], "b": {"c": "d"}}"#.to_owned(),
    }
}

#[test]
fn every_option_survives_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.toml");
    let overrides: Vec<_> = OPTIONS.iter().map(|option| (option.key.to_owned(), another(option))).collect();
    let config = layers::load(None, &overrides).unwrap();
    let (changed, plain) =
        (serde_json::to_value(&config).unwrap(), serde_json::to_value(TrainConfig::default()).unwrap());
    for option in OPTIONS {
        assert_ne!(changed[option.key], plain[option.key], "{} is not changed", option.key);
    }
    fs::write(&path, layers::to_toml(&config)).unwrap();
    assert_eq!(layers::load(Some(&path), &Vec::new()).unwrap(), config);
}

#[test]
fn every_optional_value_can_be_taken_back() {
    for option in OPTIONS {
        let overrides = [another(option), "none".to_owned()].map(|value| (option.key.to_owned(), value));
        let taken_back = layers::load(None, &overrides.to_vec()).is_ok_and(|config| config == TrainConfig::default());
        assert_eq!(taken_back, option.absent.is_some(), "{}", option.key);
    }
}
