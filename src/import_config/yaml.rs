//! YAML as the other systems read it. They read it with `PyYAML`, which has YAML 1.1: `010` is 8 there. What that and
//! the parser here have for different things without either saying so is refused with its line.

use anyhow::{Result, bail};
use serde_json::Value;
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle};

/// The value of a document.
///
/// # Errors
/// When it is no YAML, or holds a value with two meanings, with the line.
pub fn value(text: &str) -> Result<Value> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let value = serde_saphyr::from_str_with_options(text, options);
    let value = value.map_err(|error| anyhow::Error::msg(fault(&error)))?;
    refuse_double_meanings(text)?;
    Ok(value)
}

/// Refuses values, not keys, that are written without quotes and have another meaning in YAML 1.1.
fn refuse_double_meanings(text: &str) -> Result<()> {
    // For each list or mapping around the next node: whether that node is a key; none in a list.
    let mut around: Vec<Option<bool>> = Vec::new();
    for event in Parser::new_from_str(text) {
        // A fault of the document has been told.
        let Ok((event, span)) = event else { return Ok(()) };
        let is_node =
            matches!(event, Event::Scalar(..) | Event::Alias(_) | Event::SequenceStart(..) | Event::MappingStart(..));
        let mut is_key = false;
        if let (true, Some(Some(next))) = (is_node, around.last_mut()) {
            is_key = *next;
            *next = !is_key;
        }
        match event {
            Event::SequenceStart(..) => around.push(None),
            Event::MappingStart(..) => around.push(Some(true)),
            Event::SequenceEnd | Event::MappingEnd => {
                around.pop();
            }
            Event::Scalar(word, ScalarStyle::Plain, _, None) if !is_key => {
                if let Some([there, way]) = double_meaning(&word) {
                    let line = span.start.line();
                    bail!("line {line}: `{word}` is {there} in YAML 1.1, as its own system reads it; write {way}");
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a plain word is in YAML 1.1 if that is not what is read here, and what says the same everywhere.
fn double_meaning(word: &str) -> Option<[&'static str; 2]> {
    let is_one_of = |words: &[&str]| words.iter().any(|one| word.eq_ignore_ascii_case(one));
    // Python's spellings are its own: y, yEs or nUll is none of them.
    let is_spelled = [word.to_lowercase(), word.to_uppercase(), capitalised(word)].iter().any(|known| known == word);
    if is_one_of(&["y", "n"]) || (is_one_of(&["yes", "no", "true", "false", "on", "off"]) && !is_spelled) {
        return Some(["text", "true or false, or the text in quotes"]);
    }
    if is_one_of(&["null"]) && !is_spelled {
        return Some(["text", "null, or the text in quotes"]);
    }
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    let is_number = |(prefix, base): &(&str, u32)| {
        let digits = digits.strip_prefix(prefix).unwrap_or_default();
        !digits.is_empty() && digits.chars().all(|c| c.is_digit(*base) || c == '_')
    };
    if [("0o", 8), ("0O", 8), ("0X", 16), ("0B", 2)].iter().any(is_number) {
        return Some(["text", "the number in base ten, or the text in quotes"]);
    }
    is_sexagesimal(digits).then_some(["a number in base 60", "the number in base ten, or the text in quotes"])
}

fn capitalised(word: &str) -> String {
    word.chars().take(1).map(|c| c.to_ascii_uppercase()).chain(word.to_lowercase().chars().skip(1)).collect()
}

/// Whether it is a number such as `1:30`, which is 90, or `1:30.5`. A whole number does not begin with a zero.
fn is_sexagesimal(digits: &str) -> bool {
    let (whole, fraction) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let Some((first, rest)) = whole.split_once(':') else { return false };
    let are_digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '_');
    let is_below_60 = |part: &str| match part.as_bytes() {
        [one] => one.is_ascii_digit(),
        [ten, one] => (b'0'..=b'5').contains(ten) && one.is_ascii_digit(),
        _ => false,
    };
    let begins = first.starts_with(|c: char| c.is_ascii_digit() && (c != '0' || fraction.is_some()));
    begins && are_digits(first) && rest.split(':').all(is_below_60) && fraction.is_none_or(are_digits)
}

/// The fault of a document. The parser takes some for a matter of its own settings, and names those.
fn fault(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    let words = match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("`{key}` is given twice"),
        Error::DuplicateMappingKey { key: None, .. } => "a key is given twice".to_owned(),
        Error::NonFiniteFloat { value, .. } => {
            format!("`{value}` is no finite number, and no option takes another; write one, or leave the key out")
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an anchor refers to itself; write the value out".to_owned()
        }
        Error::MultipleDocuments { .. } => "a second document begins; keep one of them".to_owned(),
        _ => return format!("is no valid YAML: {}", one_line(&error.to_string())),
    };
    error.location().map_or(words.clone(), |at| format!("line {}: {words}", at.line()))
}

fn one_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().trim_end_matches(':').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The values are those of `PyYAML` 6. Text is left where TRL makes a number of it (`1e-5`, `08`).
    #[test]
    fn numbers_and_truth_values_are_those_of_yaml_1_1() {
        for (word, expected) in [
            ("010", json!(8)),
            ("-010", json!(-8)),
            ("+010", json!(8)),
            ("00", json!(0)),
            ("0", json!(0)),
            ("0x10", json!(16)),
            ("0b101", json!(5)),
            ("1_000", json!(1000)),
            ("007.5", json!(7.5)),
            ("0.5", json!(0.5)),
            ("yes", json!(true)),
            ("NO", json!(false)),
            ("on", json!(true)),
            ("Off", json!(false)),
            ("Null", json!(null)),
            ("1.0e-5", json!(1e-5)),
            ("1e-5", json!(1e-5)),
            ("08", json!(8.0)),
            ("'010'", json!("010")),
            ("'y'", json!("y")),
            ("\"1:30\"", json!("1:30")),
            ("!!str 1:30", json!("1:30")),
            ("2026-01-01", json!("2026-01-01")),
            ("01:30", json!("01:30")),
            ("1:60", json!("1:60")),
            ("10.0.0.1:8000", json!("10.0.0.1:8000")),
            ("localhost:80", json!("localhost:80")),
            ("0Xen", json!("0Xen")),
            ("0Bad", json!("0Bad")),
        ] {
            assert_eq!(value(&format!("a: {word}\n")).unwrap(), json!({ "a": expected }), "{word}");
        }
        let found = value("y: 1\n1:30: {n: 010, b: [2]}\nc: [{y: x}, 3]\n").unwrap();
        assert_eq!(found, json!({ "y": 1, "1:30": { "n": 8, "b": [2] }, "c": [{ "y": "x" }, 3] }));
    }

    #[test]
    fn a_word_that_yaml_1_1_has_for_something_else_is_refused_with_its_line() {
        for (word, there) in [
            ("y", "text"),
            ("N", "text"),
            ("yEs", "text"),
            ("nUll", "text"),
            ("0o10", "text"),
            ("-0o17", "text"),
            ("0XFF", "text"),
            ("1:30", "a number in base 60"),
            ("-12:30:00", "a number in base 60"),
            ("1:30.5", "a number in base 60"),
            ("[1, {b: y}]", "text"),
            ("{y: n}", "text"),
        ] {
            let message = value(&format!("a: 1\nb: {word}\n")).expect_err(word).to_string();
            assert!(message.starts_with("line 2: `"), "{word}: {message}");
            let words = format!("` is {there} in YAML 1.1, as its own system reads it; write ");
            assert!(message.contains(&words) && message.ends_with("or the text in quotes"), "{word}: {message}");
        }
    }
}
