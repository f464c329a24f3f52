//! `tandem push`: a model with its card to the Hub, as one commit. Nothing else in Tandem sends anything there.

mod files;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use exporters::{AdapterConfig, Checkpoint};
use shared::run::checkpoints;
use shared_hub::{Hub, NamedAdapter, NamedModel, NamedModelError, PushFile, PushOrder, Pushed, check_names};

use crate::{
    card::{self, Subject, place::Place},
    terminal::output,
};

/// Flags of `tandem push`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model directory, LoRA adapter (which is sent without its base), checkpoint, or run (its best checkpoint if it
    /// has recorded one, else its newest).
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Repository on the Hub; it is made if it is missing.
    #[arg(long, value_name = "OWNER/NAME")]
    repo: String,
    /// Let everybody see it: without this, a new repository is private, and a public one is refused.
    #[arg(long)]
    public: bool,
    /// Branch; it is made if it is missing.
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    revision: String,
    /// First line of the commit's message.
    ///
    /// Default: "Upload MODEL with tandem".
    #[arg(long, value_name = "TEXT")]
    commit_message: Option<String>,
    /// Name on the Hub of the model that this one was made of, where the card would name a folder of this machine; an
    /// adapter names it as its base.
    #[arg(long, value_name = "OWNER/NAME")]
    base_model: Option<String>,
    /// List the files with their sizes, and send nothing.
    #[arg(long)]
    dry_run: bool,
}

/// What is sent.
enum Source {
    Model(Box<NamedModel>),
    /// An adapter goes without its base, so the base need not be on this machine.
    Adapter(NamedAdapter),
}

impl Source {
    fn find(named: &Path) -> Result<Self> {
        let error = match NamedModel::find(named) {
            Ok(model) => return Ok(Self::Model(Box::new(model))),
            Err(error) => error,
        };
        let alone = match &error {
            NamedModelError::Directory(_) => NamedAdapter::find(named)?,
            _ => None,
        };
        Ok(Self::Adapter(alone.ok_or(error)?))
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Model(model) => model.folder(),
            Self::Adapter(adapter) => adapter.folder(),
        }
    }

    fn tell_choice(&self) {
        match self {
            Self::Model(model) => model.tell_choice(),
            Self::Adapter(adapter) => adapter.tell_choice(),
        }
    }

    fn is_adapter(&self) -> bool {
        match self {
            Self::Model(model) => model.dir().adapter().is_some(),
            Self::Adapter(_) => true,
        }
    }

    /// Reads what others will read.
    fn check(&self) -> Result<()> {
        match self {
            Self::Model(model) => drop(Checkpoint::open(model.dir())?),
            Self::Adapter(adapter) => {
                AdapterConfig::read(adapter.folder())?;
                output::tell("warning: the adapter's base is not on this machine, so nobody checks that both fit");
            }
        }
        Ok(())
    }

    fn card(&self, subject: &Subject<'_>) -> Result<String> {
        match self {
            Self::Model(model) => card::text(&**model, subject),
            Self::Adapter(adapter) => card::text(adapter, subject),
        }
    }
}

/// Runs `tandem push`; a message on stdout says what there is now.
///
/// # Errors
/// A model that is not whole or cannot be named, a card that cannot be written, and everything that the Hub refuses.
pub fn run(args: &Args) -> Result<ExitCode> {
    check_names(&args.repo, &args.revision).context("--repo, --revision")?;
    if let Some(base) = &args.base_model {
        check_names(base, "main").context("--base-model")?;
    }
    let message = args.message()?;
    let named = Source::find(&args.model)?;
    let hub = Hub::of_command();
    if !args.dry_run {
        hub.check_push().with_context(|| args.failed())?;
    }
    named.tell_choice();
    let files = args.files(&named)?;
    if args.dry_run {
        list(&files, &args.repo);
        return Ok(ExitCode::SUCCESS);
    }
    let order = PushOrder {
        repo: &args.repo,
        revision: &args.revision,
        public: args.public,
        message: &message,
        files: &files,
        replaces: files::replaces,
    };
    let pushed = hub.push(&order).with_context(|| args.failed())?;
    args.tell(&files, &pushed);
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn failed(&self) -> String {
        format!("cannot push {} to {}", self.model.display(), self.repo)
    }

    fn message(&self) -> Result<String> {
        let name = match Place::of(&self.model) {
            Place::Hub { name, .. } | Place::Local(name) => name,
        };
        let message = self.commit_message.clone().unwrap_or_else(|| format!("Upload {name} with tandem"));
        if message.trim().is_empty() {
            bail!("--commit-message: is empty; leave it out, or say what is new");
        }
        Ok(message)
    }

    /// All files of the model, the card among them.
    fn files(&self, named: &Source) -> Result<Vec<PushFile>> {
        let folder = named.folder();
        if matches!(named, Source::Model(model) if model.is_version()) {
            bail!(
                "{0}: a published version is no model that other programs open, and a run without a checkpoint has \
                 nothing else; name a checkpoint, or write one: `tandem export --model {0} --format safetensors --out \
                 DIR`, then `tandem push --model DIR`",
                self.model.display()
            );
        }
        let as_adapter = named.is_adapter();
        let names = files::names(folder, as_adapter)?;
        let weights = names.iter().map(String::as_str).filter(|name| name.ends_with(".safetensors"));
        checkpoints::check_files(folder, weights).with_context(|| format!("{} is not whole", folder.display()))?;
        named.check()?;
        let mut found = names.iter().map(|name| self.file(named, name)).collect::<Result<Vec<_>>>()?;
        if !names.iter().any(|name| name == card::FILE) {
            let subject = Subject {
                title: self.repo.rsplit('/').next().unwrap_or(&self.repo),
                repo: Some(&self.repo),
                as_adapter,
                base: self.base_model.as_deref(),
            };
            let card = named.card(&subject).with_context(|| {
                format!("{0} cannot be made; one of your own, {1}/{0}, goes in its place", card::FILE, folder.display())
            })?;
            found.push(PushFile::of_bytes(card::FILE, card.into_bytes()));
        }
        found.sort_by(|one, other| one.name().cmp(other.name()));
        Ok(found)
    }

    fn file(&self, named: &Source, name: &str) -> Result<PushFile> {
        let path = named.folder().join(name);
        let rewritten = files::without_paths(&path, self.base_model.as_deref())?;
        if let Some((_, Some(base))) = &rewritten {
            shared::tell!(
                "warning: the adapter's base is a folder of this machine, and {name} will call it `{base}`, which \
                 nobody else finds; --base-model OWNER/NAME gives its name on the Hub"
            );
        }
        Ok(match rewritten {
            Some((bytes, _)) => PushFile::of_bytes(name, bytes),
            None => PushFile::of_path(name, &path).with_context(|| path.display().to_string())?,
        })
    }

    fn tell(&self, files: &[PushFile], pushed: &Pushed) {
        for name in &pushed.removed {
            output::tell(format_args!("{name} was of the model before, and is removed"));
        }
        if self.public && pushed.private {
            output::tell(format_args!(
                "warning: {} was there before and is private, and stays so; its settings there change that",
                pushed.page
            ));
        }
        let seen = if pushed.private { "private" } else { "public" };
        let made = if pushed.created { "new, " } else { "" };
        let page = &pushed.page;
        match &pushed.commit {
            None => {
                output::print(format_args!("nothing to commit: {page} ({made}{seen}) has all {} files", files.len()))
            }
            Some(commit) => {
                let total = mebibytes(files.iter().map(PushFile::size).sum());
                let sent = mebibytes(pushed.sent);
                let present = match pushed.present.len() {
                    0 => String::new(),
                    many => format!(", {many} of them there already"),
                };
                output::print(format_args!(
                    "pushed {} files ({total}{present}; {sent} of large files sent) to {page} ({made}{seen}), commit \
                     {commit}",
                    files.len()
                ));
            }
        }
    }
}

fn list(files: &[PushFile], repo: &str) {
    for file in files {
        output::print(format_args!("{:>14}  {}", file.size(), file.name()));
    }
    let total: u64 = files.iter().map(PushFile::size).sum();
    output::print(format_args!("{total:>14}  bytes in {} files for {repo}; nothing was sent (--dry-run)", files.len()));
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
