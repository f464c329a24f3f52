//! How deep a template may nest values, and itself.
//!
//! minijinja compiles expressions by recursion, and prints, compares and drops values by recursion. Its namespaces can
//! be changed: a namespace that holds itself, or a list that a loop puts into itself again and again, overflows the
//! stack, which ends the process. Neither is of use in a chat template. So the values of assignments and the first
//! values of namespaces are examined and copied, since a lazy value could still refer to something that changes. The
//! length of a tag bounds how deep it can nest, and minijinja itself bounds recursion: the stack of templates has room
//! for the product.

use minijinja::{
    Environment, Error, ErrorKind, State, Value,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
    value::{Kwargs, Tuple, ValueKind},
};

/// Most lists and maps in each other.
const MOST_NESTED: usize = 64;
/// Values that all assignments of one rendering may examine together: a list that grows by a message at a time is
/// copied each time.
const MOST_LOOKED_AT: usize = 10_000_000;

/// Most words and signs between `{%` and `%}`, or `{{` and `}}`.
const MOST_TOKENS: usize = 1_000;
/// Most filters in a tag.
const MOST_FILTERS: usize = 64;
/// Most `elif` of a template, each of which is compiled within the one before.
const MOST_ELIFS: usize = 500;

/// Objects that are more than their items, by the ends of their types' names, which are private.
const THEMSELVES: [&str; 4] = ["::GroupTuple", "::Loop", "::Macro", "::Module"];

/// Filter for values that are assigned to a variable.
const TO_VARIABLE: &str = "__to_variable";
/// Filter for values that are assigned to an attribute, which is always one of a namespace.
const TO_NAMESPACE: &str = "__to_namespace";

/// Registers the filters that [`bounded`] puts into a template, and makes `namespace()` examine its arguments.
pub fn add_to(environment: &mut Environment<'_>) {
    let namespace = environment.globals().find(|(name, _)| *name == "namespace").expect("a function of minijinja's").1;
    environment.add_function("namespace", move |state: &mut State, defaults: Option<Value>, named: Kwargs| {
        let named = named.args().map(|name| Ok((name.to_owned(), named.get::<Value>(name)?)));
        let named = named.collect::<Result<Vec<_>, Error>>()?;
        let defaults = defaults.unwrap_or_else(|| Value::from_pairs(named));
        let defaults = copy(&defaults, 0, Namespaces::AreRefused, looked_at(state))?;
        namespace.call(state, &[defaults])
    });
    environment.add_filter(TO_VARIABLE, |state: &mut State, value: Value| {
        copy(&value, 0, Namespaces::AreVariables, looked_at(state))
    });
    environment.add_filter(TO_NAMESPACE, |state: &mut State, value: Value| {
        copy(&value, 0, Namespaces::AreRefused, looked_at(state))
    });
}

/// The template with a filter after each expression that is assigned. A template that cannot be parsed stays as it is:
/// compiling it says why.
///
/// # Errors
/// A tag that is too long, or too many `elif`.
pub fn bounded(source: &str, syntax: &SyntaxConfig) -> Result<String, String> {
    let mut result = String::with_capacity(source.len());
    let mut copied = 0;
    let mut insert = |at: u32, words: &str| {
        result.push_str(&source[copied..at as usize]);
        result.push_str(words);
        copied = at as usize;
    };
    let mut place = Position::Elsewhere;
    let mut open = 0_usize;
    let (mut tokens, mut filters, mut elifs) = (0, 0, 0);
    for token in tokenize(source, false, syntax.clone()) {
        let Ok((token, span)) = token else { return Ok(source.to_owned()) };
        tokens += 1;
        match token {
            Token::BlockStart | Token::VariableStart => (tokens, filters) = (0, 0),
            Token::Pipe => filters += 1,
            Token::Ident("elif") if matches!(place, Position::Begun) => elifs += 1,
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => open += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => open = open.saturating_sub(1),
            _ => {}
        }
        for (count, most, what) in [
            (tokens, MOST_TOKENS, "words and signs in one tag"),
            (filters, MOST_FILTERS, "filters in one tag"),
            (elifs, MOST_ELIFS, "elif"),
        ] {
            if count > most {
                return Err(format!("more than {most} {what} (line {})", span.start_line));
            }
        }
        place = match (place, token) {
            (_, Token::BlockStart) => Position::Begun,
            (Position::Begun, Token::Ident("set")) => Position::Target(TO_VARIABLE),
            (Position::Target(_), Token::Dot) => Position::Target(TO_NAMESPACE),
            (Position::Target(filter), Token::Assign) if open == 0 => {
                insert(span.end_offset, "(");
                Position::Assigned(filter, ")|")
            }
            (Position::Target(filter), Token::Pipe) => Position::Assigned(filter, "|"),
            (Position::Assigned(filter, before), Token::BlockEnd) => {
                insert(span.start_offset, &format!("{before}{filter} "));
                Position::Elsewhere
            }
            (Position::Begun, _) | (_, Token::BlockEnd) => Position::Elsewhere,
            (place, _) => place,
        };
    }
    result.push_str(&source[copied..]);
    Ok(result)
}

/// Place of a token in a template.
#[derive(Clone, Copy)]
enum Position {
    /// Outside of `{% set %}`.
    Elsewhere,
    /// Behind `{%`.
    Begun,
    /// Behind `set`; the filter that fits the target so far.
    Target(&'static str),
    /// In the expression, or the filters of a block; the filter, and the text that goes before it.
    Assigned(&'static str, &'static str),
}

/// How a namespace within a value is treated.
#[derive(Clone, Copy)]
enum Namespaces {
    AreVariables,
    AreRefused,
}

/// Values examined in this rendering.
#[derive(Default)]
struct LookedAt(usize);

fn looked_at<'a>(state: &'a mut State<'_, '_>) -> &'a mut usize {
    &mut state.get_or_insert_extension(LookedAt::default()).0
}

fn copy(value: &Value, depth: usize, namespaces: Namespaces, looked_at: &mut usize) -> Result<Value, Error> {
    let refuse = |reason: String| Err(Error::new(ErrorKind::InvalidOperation, reason));
    *looked_at += 1;
    if *looked_at > MOST_LOOKED_AT {
        return refuse(format!("its assignments hold more than {MOST_LOOKED_AT} values together"));
    }
    let is = |kind: &str| value.as_object().is_some_and(|object| object.type_name().ends_with(kind));
    if is("::Namespace") {
        return match namespaces {
            Namespaces::AreVariables => Ok(value.clone()),
            Namespaces::AreRefused => refuse("a namespace cannot be put into a namespace".into()),
        };
    }
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(value.clone());
    }
    if depth == MOST_NESTED {
        return refuse(format!("a value is nested more than {MOST_NESTED} deep"));
    }
    let mut inner = |value: &Value| copy(value, depth + 1, namespaces, looked_at);
    if kind == ValueKind::Map {
        let pairs = value.try_iter()?.map(|key| Ok((inner(&key)?, inner(&value.get_item(&key)?)?)));
        let copy = Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?);
        return Ok(if THEMSELVES.into_iter().any(is) { value.clone() } else { copy });
    }
    let items = value.try_iter()?.map(|item| inner(&item)).collect::<Result<Vec<_>, Error>>()?;
    Ok(if THEMSELVES.into_iter().any(is) {
        value.clone()
    } else if value.is_tuple() {
        Value::from_object(Tuple::new(items))
    } else {
        Value::from(items)
    })
}
