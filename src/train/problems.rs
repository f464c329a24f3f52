//! Problems that keep a run from starting: all of them, not only the first.

use std::{error, fmt, fmt::Display};

use anyhow::Error;

/// The problems, in the order in which they were found.
#[derive(Debug, Default)]
pub struct Problems(Vec<Error>);

impl Problems {
    /// Adds one problem, or all that another check found.
    pub fn add(&mut self, problem: impl Into<Error>) {
        match problem.into().downcast::<Self>() {
            Ok(several) => self.0.extend(several.0),
            Err(problem) => self.0.push(problem),
        }
    }

    /// The value of a check that succeeded; the error of a failed check is added.
    pub fn take<T>(&mut self, result: Result<T, impl Into<Error>>) -> Option<T> {
        result.map_err(|problem| self.add(problem)).ok()
    }

    /// Succeeds if there are no problems.
    ///
    /// # Errors
    /// All problems.
    pub fn check(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// The problems in words, if there are several: a list for the terminal, above the line that counts them.
    pub fn list(&self) -> Option<Vec<String>> {
        (self.0.len() > 1).then(|| self.0.iter().map(|problem| format!("{problem:#}")).collect())
    }
}

impl<E: Into<Error>> Extend<E> for Problems {
    fn extend<T: IntoIterator<Item = E>>(&mut self, problems: T) {
        problems.into_iter().for_each(|problem| self.add(problem));
    }
}

/// The problem, or how many there are.
impl Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "{one:#}"),
            several => write!(f, "{} problems keep the run from starting", several.len()),
        }
    }
}

impl error::Error for Problems {}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn one_problem_is_the_error_and_several_are_listed_above_it() {
        let mut problems = Problems::default();
        assert_eq!(problems.take(Ok::<_, Error>(3)), Some(3));
        assert_eq!(problems.take(Err::<(), _>(anyhow!("no such file")).context("`dataset`")), None);
        assert_eq!((problems.to_string(), problems.list()), ("`dataset`: no such file".into(), None));
        problems.extend([anyhow!("unknown reward")]);
        assert_eq!(problems.list().unwrap(), ["`dataset`: no such file", "unknown reward"]);
        let mut more = Problems::default();
        more.add(Error::from(problems));
        let problems = more;
        assert_eq!(problems.check().unwrap_err().to_string(), "2 problems keep the run from starting");
        Problems::default().check().unwrap();
    }
}
