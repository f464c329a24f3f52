//! `rollout-fleet check`: what the coordinator of a run would be refused for, for `tandem train --dry-run`.

use std::{
    io::{self, Read, Write},
    path::Path,
};

use anyhow::Context;
use serde_json::Value;
use shared::config::{TrainConfig, layers};
use shared_fleet::ListenOptions;
use shared_store::Store;

/// Flags of `rollout-fleet check`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Reads a resolved configuration from stdin; the answer on stdout is a JSON list of problems in words.
///
/// # Errors
/// A configuration that cannot be read.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("stdin")?;
    let config = layers::parse(&text, Path::new("stdin"), &Vec::new())?;
    writeln!(io::stdout(), "{}", Value::from(problems(&config))).context("stdout")
}

/// Why a coordinator would not begin, as far as files tell: its address may be taken or free until then.
fn problems(config: &TrainConfig) -> Vec<String> {
    let problems = [check_door(config), check_store(config)].into_iter().filter_map(Result::err);
    problems.map(|problem| format!("{problem:#}")).collect()
}

fn check_door(config: &TrainConfig) -> anyhow::Result<()> {
    let options = ListenOptions::from_config(config)?;
    Ok(options.map_or(Ok(()), |options| options.check())?)
}

/// Opens the store, or the folder in which a start would make it.
fn check_store(config: &TrainConfig) -> anyhow::Result<()> {
    let Some(place) = &config.weights_store else { return Ok(()) };
    let folder = place.strip_prefix("file://").unwrap_or(place);
    let opened = match Path::new(folder).ancestors().find(|path| path.exists()) {
        Some(there) if there.is_dir() => there.display().to_string(),
        None if !folder.contains("://") => return Ok(()),
        _ => place.clone(),
    };
    Store::open(&opened).map(drop).context("`weights_store`")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use harness::certificates::{Authority, TODAY};

    use super::*;

    #[test]
    fn files_that_are_missing_empty_or_wrong_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let [empty, token, missing] = ["empty", "token", "missing"].map(|name| dir.path().join(name));
        fs::write(&empty, "\n").unwrap();
        fs::write(&token, "the word of this run itself\n").unwrap();
        let authority = Authority::new();
        let (certificate, key) = authority.sign("127.0.0.1", TODAY);
        let (_, of_another) = authority.sign("other", TODAY);
        let good = TrainConfig {
            listen: Some("tls/127.0.0.1:7447".into()),
            token_file: Some(token.clone()),
            tls_certificate: Some(certificate.clone()),
            tls_private_key: Some(key),
            tls_client_ca: Some(authority.ca()),
            weights_store: Some(dir.path().join("new/store").display().to_string()),
            ..TrainConfig::default()
        };
        assert_eq!(problems(&good), [""; 0]);
        assert!(!dir.path().join("new").exists(), "a check makes nothing");
        let of = |path: &Path| Some(path.to_path_buf());
        let below_a_file = Some(token.join("store").display().to_string());
        let no_certificate = "it has no certificate";
        for (config, words) in [
            (TrainConfig { token_file: of(&missing), ..good.clone() }, ["`token_file`", "No such file or directory"]),
            (TrainConfig { token_file: of(dir.path()), ..good.clone() }, ["`token_file`", "is a directory"]),
            (TrainConfig { token_file: of(&empty), ..good.clone() }, ["`token_file`", "it is empty; write a long"]),
            (TrainConfig { tls_certificate: of(&empty), ..good.clone() }, ["`tls_certificate`", no_certificate]),
            (
                TrainConfig { tls_private_key: of(&certificate), ..good.clone() },
                ["`tls_private_key`", "no private key"],
            ),
            (TrainConfig { tls_private_key: of(&of_another), ..good.clone() }, ["`tls_private_key`", "not the key of"]),
            (TrainConfig { tls_client_ca: of(&token), ..good.clone() }, ["`tls_client_ca`", no_certificate]),
            (
                TrainConfig { weights_store: below_a_file.clone(), ..good.clone() },
                ["`weights_store`", "Not a directory"],
            ),
        ] {
            let [problem]: [String; 1] = problems(&config).try_into().unwrap();
            assert!(words.iter().all(|word| problem.contains(word)), "{words:?}: {problem}");
        }
        assert_eq!(problems(&TrainConfig { token_file: of(&empty), weights_store: below_a_file, ..good }).len(), 2);
    }
}
