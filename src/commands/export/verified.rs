//! Formats that are verified: an export is written under another name, opened again, run and compared with its model,
//! and only then visible.

use std::{borrow::Cow, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use exporters::{
    Checkpoint, SourceError, VersionDir,
    genai::{self, GenAiOptions},
    gguf,
};
use exporters_verify::{Distance, Model, VerifyError, huggingface, published, size_of, verify};
use shared::{
    Dtype,
    files::{atomic, output_dir},
};
use shared_hub::NamedModel;

use super::{
    DtypeArg, Format, ToFormat,
    effect::{Effect, Evaluation, Exported},
    rows,
    runtime::Runtime,
};
use crate::{
    card::{self, Subject, place::Place},
    terminal::output,
};

/// The weights of a model, for the writers.
enum Stored {
    Checkpoint(Checkpoint),
    Version(VersionDir),
}

impl Stored {
    fn open(named: &NamedModel) -> Result<Self> {
        if !named.is_version() {
            return Ok(Self::Checkpoint(Checkpoint::open(named.dir())?));
        }
        let version = VersionDir::open(named.folder())?;
        let folder = named.folder().display();
        ensure!(version.is_intact(), "{folder}: the weights differ from the checksums in the manifest");
        ensure!(version.manifest().is_of(named.dir().config()), "{folder}: not a version of its run's model");
        Ok(Self::Version(version))
    }

    fn read(&self, name: &str) -> Result<Vec<f32>, SourceError> {
        Ok(match self {
            Self::Checkpoint(checkpoint) => checkpoint.read_f32(name)?,
            Self::Version(version) => version.read_f32(name)?,
        })
    }
}

/// Largest difference of a log-prob, in nats. fp16 keeps 11 bits of a weight and bf16 8, so a weight of bf16 may be off
/// by eight times as much. That is too much to bound pseudo-random tokens: the less likely a token is, the more a
/// rounding changes its log-prob. Weights in blocks have no bound either: their values are compared one by one, and the
/// effect on log-probs is a matter of the model.
fn bound(dtype: DtypeArg, rows: &rows::Rows) -> Option<f64> {
    match dtype {
        DtypeArg::Fp32 => Some(1e-4),
        DtypeArg::Fp16 => Some(1e-2),
        DtypeArg::Bf16 => (!rows.random).then_some(8e-2),
        DtypeArg::Q8_0 | DtypeArg::Q4_0 | DtypeArg::Int8 | DtypeArg::Int4 => None,
    }
}

/// Why a good export may seem to be none: a rounding changes the log-prob of a token the more, the less likely it is.
const UNLIKELY: &str = "each value is the model's, rounded, but pseudo-random tokens were compared, which a model \
                        holds for unlikely; --rows names a dataset";

/// The way out where rounded weights are too far from the model on rows that matter.
const ROUNDED: &str = "each value is the model's, rounded, but some log-probs change by more than the format may cost; \
                       take --dtype fp32, or --rows with the texts that the export is for";

/// What a log-prob that is off says where nothing is rounded. Every value was compared before.
const OTHER: &str = "each value is the model's, but a log-prob is not: the export is another model, or the model \
                     multiplies roundings of fp32 beyond the bound; compare with --rows of the texts that the \
                     export is for";

/// The same of tokens that the model holds for unlikely.
const OTHER_UNLIKELY: &str = "each value is the model's, but pseudo-random tokens were compared, whose log-probs \
                              change by roundings of fp32 in some models; --rows names a dataset";

/// Writes, verifies and tells.
pub(super) fn export(args: &ToFormat) -> Result<()> {
    check_output(args.format, &args.out)?;
    let named = NamedModel::find(&args.model)?;
    named.tell_choice();
    let (stored, rows) = (Stored::open(&named)?, rows::choose(&named, args.rows.as_deref(), args.max_positions)?);
    let mut source = reference(&named)?;
    let evaluation = Evaluation::of(&named, args.eval_rows, args.max_positions);
    let effect_of = |exported: &Exported<'_>| evaluation.as_ref().and_then(|evaluation| evaluation.effect(exported));
    let mut effect = None;
    let mut found = None;
    let mut take = |distance: Result<Distance, VerifyError>, path: &Path| -> Result<()> {
        found = Some((distance?, size_of(path)?));
        Ok(())
    };
    let (rows_of, most) = (&rows.tokens, bound(args.dtype, &rows));
    let mut read = |name: &str| -> Result<Cow<'static, [f32]>, SourceError> { Ok(stored.read(name)?.into()) };
    let written: Result<()> = match args.format {
        Format::Safetensors => atomic::write_dir(&args.out, |dir| {
            let dtype = args.dtype.float().expect("safetensors has types of floats alone");
            exporters::fill_hf_as(named.dir(), dir, dtype, &mut read)?;
            let mut export = huggingface::open(dir, None)?;
            take(verify(&mut source, &mut export, rows_of, most), dir)?;
            effect = effect_of(&Exported::Weights(source.architecture(), &export));
            match card_of(&named, &args.out, effect.as_ref()) {
                Ok(card) => Ok(atomic::write(&dir.join(card::FILE), card.as_bytes())?),
                // The weights are whole without it, perhaps those of a run that another version has made.
                Err(error) => {
                    output::tell(format_args!("warning: there is no {}: {error:#}", card::FILE));
                    Ok(())
                }
            }
        }),
        Format::Gguf => atomic::write_checked(&args.out, |file| {
            let kind = args.dtype.gguf().expect("only types that the format has come here");
            gguf::write_gguf(named.dir(), file, kind, &mut read)?;
            let mut export = exporters_verify::gguf::open(file)?;
            take(verify(&mut source, &mut export, rows_of, most), file)?;
            effect = effect_of(&Exported::Weights(source.architecture(), &export));
            Ok(())
        }),
        Format::Genai => atomic::write_dir(&args.out, |dir| {
            let precision = args.dtype.genai().expect("only types that the format has come here");
            genai::fill(named.dir(), dir, &GenAiOptions { precision, max_positions: args.max_positions }, &mut read)?;
            let mut runtime = Runtime::start(dir)?;
            let folder = exporters_verify::genai::open(dir)?;
            take(exporters_verify::genai::verify(&mut source, folder, &mut runtime, rows_of, most), dir)?;
            drop(runtime);
            effect = effect_of(&Exported::Folder(dir));
            Ok(())
        }),
        Format::Onnx => unreachable!("ONNX has a way of its own"),
    };
    written
        .map_err(|error| {
            if let Some(gone) = named.gone() {
                return error.context(gone);
            }
            if !matches!(error.downcast_ref(), Some(VerifyError::TooFar { .. })) {
                return error;
            }
            error.context(match args.dtype {
                DtypeArg::Fp32 if rows.random => OTHER_UNLIKELY,
                DtypeArg::Fp32 => OTHER,
                _ if rows.random => UNLIKELY,
                _ => ROUNDED,
            })
        })
        .with_context(|| format!("cannot export {} to {}", args.model.display(), args.out.display()))?;
    let (distance, size) = found.expect("what was written was checked");
    tell(args, &named, size, &rows, &distance);
    if args.format == Format::Gguf && named.dir().config().wrapped {
        output::print("the file has the text model alone: for images, llama.cpp reads a file of its own (mmproj)");
    }
    effect.iter().flat_map(Effect::lines).for_each(output::print);
    if evaluation.is_none() && args.eval_rows != Some(0) {
        output::print("the effect on an evaluation is not measured: the model belongs to no run");
    }
    Ok(())
}

/// The card of an export to a folder, which gives it its title, with its effect if that is known.
fn card_of(named: &NamedModel, out: &Path, effect: Option<&Effect>) -> Result<String> {
    let place = Place::of(&std::path::absolute(out)?);
    let card = card::text(named, &Subject { title: place.name(), repo: None, as_adapter: false, base: None })?;
    Ok(card + &effect.map(Effect::section).unwrap_or_default())
}

/// The model as the verifying crate reads it from its own files.
fn reference(named: &NamedModel) -> Result<Model> {
    let dir = named.dir();
    Ok(if named.is_version() {
        published::open(named.folder(), &dir.path().join("config.json"))?
    } else {
        huggingface::open(dir.path(), dir.adapter())?
    })
}

/// Refuses, before any work, an output that exists or that could not be written after it.
fn check_output(format: Format, out: &Path) -> Result<()> {
    if format != Format::Gguf {
        return output_dir::check(out, &[]).context("--out");
    }
    ensure!(
        !out.is_dir() && !out.as_os_str().as_encoded_bytes().ends_with(b"/"),
        "--out {}: gguf is one file; name it, as in {}",
        out.display(),
        out.join("model.gguf").display()
    );
    if fs::symlink_metadata(out).is_ok() {
        bail!("--out {}: exists; choose another name, or remove the file", out.display());
    }
    let above = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(above.is_dir(), "--out {}: no such folder: {}", out.display(), above.display());
    Ok(())
}

fn tell(args: &ToFormat, named: &NamedModel, size: u64, rows: &rows::Rows, distance: &Distance) {
    let parameters = named.dir().config().parameter_count();
    output::print(format_args!(
        "wrote {parameters} parameters as {} ({}, {:.1} MiB) to {}: {:.0} % of the parameters' size in fp32",
        args.format.name(),
        args.dtype.name(),
        size as f64 / f64::from(1 << 20),
        args.out.display(),
        100.0 * size as f64 / (parameters * Dtype::Fp32.size() as u64) as f64,
    ));
    let bound = match bound(args.dtype, rows) {
        Some(bound) => format!("bound {bound:.0e}"),
        None if args.dtype == DtypeArg::Bf16 => {
            "no bound for tokens that a model holds for unlikely: each value is the model's, rounded; --rows names a \
             dataset"
                .to_owned()
        }
        None if args.format == Format::Genai => {
            "no bound for one token: the values of a block are within half a step of the model's, and the mean is \
             little above that of these values in a plain forward pass"
                .to_owned()
        }
        None => "no bound: the values of a block are within half a step of the model's".to_owned(),
    };
    output::print(format_args!(
        "opened again and compared on {} tokens of {} ({}): log-probs differ by {:.1e} at most ({bound}), {:.1e} on \
         average; KL {:.1e}; the likeliest token is the same for {:.1}%",
        distance.tokens,
        if rows.tokens.len() == 1 { "1 row".to_owned() } else { format!("{} rows", rows.tokens.len()) },
        rows.origin,
        distance.largest,
        distance.mean,
        distance.kl,
        100.0 * distance.same_greedy,
    ));
}
