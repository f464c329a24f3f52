//! Why nothing was pushed.

use std::io;

/// A push that came to nothing. No message has the token in it.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The variable forbids the network.
    #[error("{variable} forbids the network; unset it to push")]
    Offline {
        /// The variable.
        variable: &'static str,
    },
    /// There is no token.
    #[error(
        "there is no token; make one that may write at {endpoint}/settings/tokens, and give it in HF_TOKEN or by `hf \
         auth login`"
    )]
    NoToken {
        /// The Hub's address.
        endpoint: String,
    },
    /// The file of the token cannot be read.
    #[error("the token of the Hub cannot be read: {reason}; give it in HF_TOKEN, or remove the file")]
    TokenFile {
        /// The file, and what is wrong with it.
        reason: String,
    },
    /// The token has characters that no token has.
    #[error("the token (HF_TOKEN, or the file that `hf auth login` wrote) has blanks or other characters of no token")]
    TokenForm,
    /// A file has the token in it.
    #[error("{file}: has the token in it, and is not sent; take it out")]
    TokenInFile {
        /// The file.
        file: String,
    },
    /// No name of a repository.
    #[error(
        "`{repo}` is no name on the Hub: it is OWNER/NAME of letters, digits, `-`, `_` and `.`, at most 96 characters, \
         as in me/my-model"
    )]
    Name {
        /// What was given.
        repo: String,
    },
    /// No name of a branch.
    #[error("`{revision}` is no name of a branch: letters, digits, `-`, `_`, `.` and `/`, and no commit")]
    Revision {
        /// What was given.
        revision: String,
    },
    /// A file cannot be read.
    #[error("{file}: {reason}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        reason: io::Error,
    },
    /// The token is not accepted.
    #[error(
        "{endpoint} does not accept the token ({reason}); HF_TOKEN, or the file that `hf auth login` wrote, has it"
    )]
    Token {
        /// The Hub's address.
        endpoint: String,
        /// The Hub's words.
        reason: String,
    },
    /// The token may not do that.
    #[error(
        "{what}: the token may not ({reason}); it must be allowed to write to what belongs to {owner}: \
         {endpoint}/settings/tokens"
    )]
    Permission {
        /// What was to be done.
        what: String,
        /// The owner of the repository.
        owner: String,
        /// The Hub's address.
        endpoint: String,
        /// The Hub's words.
        reason: String,
    },
    /// The repository, or its owner, is not there.
    #[error("{what}: {endpoint} knows no such owner, repository or branch, or does not show it ({reason})")]
    NotFound {
        /// What was to be done.
        what: String,
        /// The Hub's address.
        endpoint: String,
        /// The Hub's words.
        reason: String,
    },
    /// Somebody else is at work on it.
    #[error("{what}: in conflict with something else ({reason}); try again when that is done")]
    Conflict {
        /// What was to be done.
        what: String,
        /// The Hub's words.
        reason: String,
    },
    /// Somebody else has committed meanwhile.
    #[error("{repo} has got another commit meanwhile, and this one was not made; push again")]
    Moved {
        /// The repository.
        repo: String,
    },
    /// A public repository, though nobody said that it may be public.
    #[error(
        "{page} is public, and nothing was sent: everybody would see it. --public says that this is meant; for a \
         private one, change its visibility there, or choose another name"
    )]
    Public {
        /// The page of the repository.
        page: String,
    },
    /// The Hub does not say whether a repository is private.
    #[error(
        "{endpoint} does not say whether {repo} is private, and nothing was sent; --public says that it need not be"
    )]
    Unsaid {
        /// The Hub's address.
        endpoint: String,
        /// The repository.
        repo: String,
    },
    /// The Hub leaves a file out.
    #[error("{file}: the .gitignore of {repo} leaves it out; change that file there, or choose another repository")]
    Ignored {
        /// The file.
        file: String,
        /// The repository.
        repo: String,
    },
    /// The card's head is not accepted.
    #[error("README.md: {endpoint} does not accept its head: {reason}")]
    Card {
        /// The Hub's address.
        endpoint: String,
        /// The Hub's words.
        reason: String,
    },
    /// The store of large files takes them by Xet alone.
    #[error(
        "{endpoint} takes large files by its protocol Xet alone, which this program does not speak; `hf upload` does, \
         after `tandem export --format safetensors`"
    )]
    Xet {
        /// The Hub's address.
        endpoint: String,
    },
    /// Another refusal.
    #[error("{what}: {place} answers with status {status} ({reason})")]
    Status {
        /// What was to be done.
        what: String,
        /// The address of the server.
        place: String,
        /// The HTTP status.
        status: u16,
        /// The server's words.
        reason: String,
    },
    /// The server is overloaded or out of order.
    #[error(
        "{what}: {place} answers with status {status} ({reason}), {times} times; nothing of this push is visible, \
         and the same command goes on from here"
    )]
    Busy {
        /// What was to be done.
        what: String,
        /// The address of the server.
        place: String,
        /// The HTTP status.
        status: u16,
        /// The server's words.
        reason: String,
        /// How often it was tried.
        times: u32,
    },
    /// The server wants to be asked later.
    #[error("{what}: {endpoint} answers with status 429 and wants to be asked again in {seconds} s; push again then")]
    Later {
        /// What was to be done.
        what: String,
        /// The Hub's address.
        endpoint: String,
        /// Its time.
        seconds: u64,
    },
    /// No answer, or half an answer.
    #[error(
        "{what}: no answer from {place} ({reason}), {times} times; nothing of this push is visible, and the same \
         command goes on from here"
    )]
    Cut {
        /// What was to be done.
        what: String,
        /// The address of the server.
        place: String,
        /// What happened last.
        reason: String,
        /// How often it was tried.
        times: u32,
    },
    /// Nothing more is taken.
    #[error(
        "{what}: nothing has been taken for {seconds} s (HF_HUB_DOWNLOAD_TIMEOUT); nothing of this push is visible, \
         and the same command goes on from here"
    )]
    Silent {
        /// What was to be done.
        what: String,
        /// How long nothing was taken.
        seconds: f64,
    },
    /// The commit was sent, and it is not known what became of it.
    #[error("whether the commit was made is not known ({reason}); the same command finds out, and sends nothing twice")]
    Unknown {
        /// What happened last.
        reason: String,
    },
    /// An answer that cannot be read.
    #[error("{what}: {endpoint} does not answer as the Hub does: {reason}")]
    Answer {
        /// What was to be done.
        what: String,
        /// The Hub's address.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The user ended the program.
    #[error("the push was interrupted; nothing of it is visible, and the same command goes on from here")]
    Interrupted,
}
