//! Methods and filters of Python and Jinja2 that minijinja and minijinja-contrib lack.

use std::sync::LazyLock;

use minijinja::{
    Environment, Error, ErrorKind, State, Value,
    value::{Kwargs, Rest, Tuple, from_args},
};
use minijinja_contrib::{filters, pycompat};
use regex::Regex;

/// Registers them.
pub fn add_to(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(unknown_method);
    environment.add_filter("wordcount", |text: &str| {
        // Python's `\w+`.
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
    });
    environment.add_filter("center", |text: &str, width: Option<usize>| center(text, width.unwrap_or(80)));
    environment.add_filter("truncate", truncate);
    environment.add_filter("striptags", filters::striptags);
    environment.add_filter("filesizeformat", filters::filesizeformat);
    environment.add_function("cycler", minijinja_contrib::globals::cycler);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
}

/// Jinja's `truncate(length=255, killwords=False, end="...", leeway=5)`: minijinja's takes named arguments alone.
fn truncate(state: &mut State<'_, '_>, value: &Value, given: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    const NAMES: [&str; 4] = ["length", "killwords", "end", "leeway"];
    if given.len() > NAMES.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let by_place = NAMES.iter().map(|name| (*name).to_owned()).zip(given.0);
    let names: Vec<&str> = named.args().collect();
    let by_name = names.into_iter().map(|name| Ok((name.to_owned(), named.get::<Value>(name)?)));
    let all: Vec<(String, Value)> = by_place.map(Ok).chain(by_name).collect::<Result<_, Error>>()?;
    filters::truncate(state, value, all.into_iter().collect())
}

/// Most characters that `center`, `ljust`, `rjust` and `zfill` fill a text to.
const MOST_WIDTH: usize = 1 << 20;

fn unknown_method(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => match of_text(text, method, args) {
            Some(result) => result,
            None => pycompat::unknown_method_callback(state, value, method, args),
        },
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// A method of Python's `str`; none if it is no method that is known here.
fn of_text(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "removeprefix" => with_text(args, |prefix| text.strip_prefix(prefix).unwrap_or(text).into()),
        "removesuffix" => with_text(args, |suffix| text.strip_suffix(suffix).unwrap_or(text).into()),
        "partition" => with_separator(args, |at| match text.split_once(at) {
            Some((before, after)) => three(before, at, after),
            None => three(text, "", ""),
        }),
        "rpartition" => with_separator(args, |at| match text.rsplit_once(at) {
            Some((before, after)) => three(before, at, after),
            None => three("", "", text),
        }),
        "rsplit" => rsplit(text, args),
        "index" => with_text(args, |part| part_at(text, text.find(part))).and_then(found),
        "rindex" => with_text(args, |part| part_at(text, text.rfind(part))).and_then(found),
        "swapcase" => none(args, || text.chars().flat_map(swapped).collect::<String>().into()),
        "casefold" => none(args, || text.to_lowercase().into()),
        "isdecimal" => none(args, || (!text.is_empty() && text.chars().all(is_decimal)).into()),
        "ljust" => with_width(args, |width, fill| Ok(format!("{text}{}", padding(text, width, fill)?).into())),
        "rjust" => with_width(args, |width, fill| Ok(format!("{}{text}", padding(text, width, fill)?).into())),
        "center" => with_width(args, |width, fill| centred(text, width, fill).map(Value::from)),
        "zfill" => with_width(args, |width, _| {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Ok(format!("{sign}{}{digits}", padding(text, width, '0')?).into())
        }),
        _ => return None,
    })
}

/// Whether Python calls a character decimal: a digit of any script (Unicode's `Nd`), and no fraction, raised or circled
/// number.
fn is_decimal(c: char) -> bool {
    static DECIMAL: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\A\d\z").expect("a valid pattern"));
    c.is_ascii_digit() || !c.is_ascii() && DECIMAL.is_match(c.encode_utf8(&mut [0; 4]))
}

fn none(args: &[Value], result: impl FnOnce() -> Value) -> Result<Value, Error> {
    from_args::<()>(args).map(|()| result())
}

fn with_text(args: &[Value], result: impl FnOnce(&str) -> Value) -> Result<Value, Error> {
    from_args::<(&str,)>(args).map(|(text,)| result(text))
}

fn with_separator(args: &[Value], result: impl FnOnce(&str) -> Value) -> Result<Value, Error> {
    match from_args::<(&str,)>(args)? {
        ("",) => Err(refusal("empty separator")),
        (text,) => Ok(result(text)),
    }
}

fn with_width(args: &[Value], result: impl FnOnce(usize, char) -> Result<Value, Error>) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    let mut fill = fill.unwrap_or(" ").chars();
    match (fill.next(), fill.next()) {
        (Some(fill), None) => result(width, fill),
        _ => Err(refusal("the fill character must be exactly one character long")),
    }
}

fn refusal(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn three(a: &str, b: &str, c: &str) -> Value {
    Value::from_object(Tuple::new(vec![a.into(), b.into(), c.into()]))
}

/// The place of a part in characters, as Python counts.
fn part_at(text: &str, at: Option<usize>) -> Value {
    at.map_or(Value::from(()), |at| text[..at].chars().count().into())
}

fn found(at: Value) -> Result<Value, Error> {
    if at.is_none() { Err(refusal("substring not found")) } else { Ok(at) }
}

fn swapped(c: char) -> Vec<char> {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

/// The characters that a text lacks to be `width` long.
fn padding(text: &str, width: usize, fill: char) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    if missing > MOST_WIDTH {
        return Err(refusal("the width is too large"));
    }
    Ok(fill.to_string().repeat(missing))
}

/// Python's `str.center`: an odd number of characters has its larger half on the left where the width is odd.
fn centred(text: &str, width: usize, fill: char) -> Result<String, Error> {
    let all = padding(text, width, fill)?;
    let missing = all.chars().count();
    let left = missing / 2 + (missing & width & 1);
    let (before, after): (String, String) = (all.chars().take(left).collect(), all.chars().skip(left).collect());
    Ok(format!("{before}{text}{after}"))
}

fn center(text: &str, width: usize) -> Result<String, Error> {
    centred(text, width, ' ')
}

/// Python's `str.rsplit`: without a separator, at white space.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most): (Option<Option<&str>>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match separator.flatten() {
        Some("") => return Err(refusal("empty separator")),
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
        None => split_at_spaces(text, most),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The last words of a text, at most `most`, and the text before them.
fn split_at_spaces(text: &str, most: usize) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text.trim_end());
    while !rest.is_empty() {
        let at = rest.rfind(char::is_whitespace).filter(|_| parts.len() < most);
        let begin = at.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
        parts.push(&rest[begin..]);
        rest = rest[..at.unwrap_or(0)].trim_end();
    }
    parts
}
