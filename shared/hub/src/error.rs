//! What can go wrong between a name and its files.

use std::{io, path::PathBuf};

use shared_data::DataError;

/// A name on the Hub that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The Hub gives no answer, and the cache has nothing.
    #[error(
        "{name}: there is no such folder, and as a name on the Hub it cannot be asked for at {endpoint} ({reason}); \
         without a network, only what is in the cache {cache} can be taken"
    )]
    Unreachable {
        /// The name.
        name: String,
        /// The Hub's address.
        endpoint: String,
        /// What happened.
        reason: String,
        /// The cache.
        cache: PathBuf,
    },
    /// Offline, and the cache lacks something.
    #[error("{name}: {missing} not in the cache {cache}, and {variable} forbids to download; unset it once")]
    Offline {
        /// The name.
        name: String,
        /// The missing thing, with its verb.
        missing: String,
        /// The cache.
        cache: PathBuf,
        /// The variable that forbids the network.
        variable: &'static str,
    },
    /// The Hub knows no such name, or does not say so to this user.
    #[error(
        "{name}: {endpoint} has no such {kind}, or does not show it {to_whom}; neither is there a folder of that name"
    )]
    NotFound {
        /// The name.
        name: String,
        /// The Hub's address.
        endpoint: String,
        /// `model` or `dataset`.
        kind: &'static str,
        /// Whom it is not shown to: a user with or without a token.
        to_whom: &'static str,
    },
    /// No such branch, tag or commit.
    #[error("{name}: has no revision `{revision}` ({option})")]
    NoRevision {
        /// The name.
        name: String,
        /// The revision that was asked for.
        revision: String,
        /// The option that names it.
        option: &'static str,
    },
    /// The token is not accepted.
    #[error(
        "{name}: {endpoint} does not accept the token ({reason}); HF_TOKEN, or the file that `hf auth login` wrote, \
         has it"
    )]
    Token {
        /// The name.
        name: String,
        /// The Hub's address.
        endpoint: String,
        /// The Hub's words.
        reason: String,
    },
    /// The file of the token cannot be read.
    #[error("{name}: the token of the Hub cannot be read: {reason}; give it in HF_TOKEN, or remove the file")]
    TokenFile {
        /// The name.
        name: String,
        /// The file, and what is wrong with it.
        reason: String,
    },
    /// A file of the cache cannot be read.
    #[error("{name}: {file} of the cache cannot be read: {reason}; remove it, and the same command downloads it again")]
    Unreadable {
        /// The name.
        name: String,
        /// The file.
        file: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The owner lets only those have it who accepted terms.
    #[error(
        "{name}: its owner lets only those have it who accepted the terms: do so at {page}, and give a token in \
         HF_TOKEN"
    )]
    Gated {
        /// The name.
        name: String,
        /// Where the terms are.
        page: String,
    },
    /// Another refusal of the Hub.
    #[error("{name}: {endpoint} answers with status {status} {reason}")]
    Status {
        /// The name.
        name: String,
        /// The Hub's address.
        endpoint: String,
        /// The HTTP status.
        status: u16,
        /// The Hub's words.
        reason: String,
    },
    /// An answer that cannot be read.
    #[error("{name}: {endpoint} does not answer as the Hub does: {reason}")]
    Answer {
        /// The name.
        name: String,
        /// The Hub's address.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model without weights in a format that is read.
    #[error("{name}: has no safetensors, and nothing else is read; its owner, or `transformers`, can convert it")]
    NoSafetensors {
        /// The name.
        name: String,
    },
    /// A dataset without the files that were asked for.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A download ended too early, several times.
    #[error(
        "{file} of {name}: the download was cut ({reason}); what has arrived is kept, and the same command goes on \
         from there"
    )]
    Cut {
        /// The name.
        name: String,
        /// The file.
        file: String,
        /// What happened last.
        reason: String,
    },
    /// Nothing arrives.
    #[error(
        "{file} of {name}: nothing has arrived for {seconds} s (HF_HUB_DOWNLOAD_TIMEOUT); what has is kept, and the \
         same command goes on from there"
    )]
    Silent {
        /// The name.
        name: String,
        /// The file.
        file: String,
        /// How long nothing arrived.
        seconds: f64,
    },
    /// The content that arrived has another hash than the Hub gives.
    #[error(
        "{file} of {name}: what arrived has another hash than the Hub gives for it, so it was thrown away; try again"
    )]
    Hash {
        /// The name.
        name: String,
        /// The file.
        file: String,
    },
    /// The cache has no room, or gives no permission.
    #[error("{file} of {name}: cannot be kept in the cache {cache}: {reason} (HF_HOME names another place)")]
    Cache {
        /// The name.
        name: String,
        /// The file.
        file: String,
        /// The cache.
        cache: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The user ended the program.
    #[error("the download was interrupted; the same command goes on from there")]
    Interrupted,
}

/// An address in a message: without the name and the password of a user, and without a query, which may be a signature.
pub(crate) fn without_secrets(address: &str) -> String {
    let end = address.find(['?', '#']).unwrap_or(address.len());
    let address = &address[..end];
    let host = address.find("//").map_or(0, |at| at + 2);
    let path = address[host..].find('/').map_or(address.len(), |at| host + at);
    match address[host..path].rfind('@') {
        Some(at) => format!("{}{}", &address[..host], &address[host + at + 1..]),
        None => address.to_owned(),
    }
}

impl HubError {
    /// Whether the error says nothing of the name, but only that the Hub does not answer as it should.
    pub(crate) fn is_of_the_hub(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Answer { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_messages_keep_no_secrets() {
        for (address, shown) in [
            ("https://huggingface.co", "https://huggingface.co"),
            ("http://user:SECRET@host:80/a@b", "http://host:80/a@b"),
            ("http://user:SEC@RET@host", "http://host"),
            ("user:SECRET@host", "host"),
            ("ftp://SECRET@host/x?sig=SECRET#SECRET", "ftp://host/x"),
            ("https:///x?SECRET", "https:///x"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(address), shown);
        }
    }
}
