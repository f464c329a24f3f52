//! `rollout logits`: what a folder for ONNX Runtime GenAI says of rows of tokens. Another program asks, which compares
//! the folder with the model that it was made of.

use std::{
    io::{self, BufRead, Write},
    path::PathBuf,
};

use anyhow::Context;

use crate::engine::GenAiFolder;

/// Flags of `rollout logits`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of an export for ONNX Runtime GenAI.
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// Threads of the graph.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
}

/// Runs the subcommand: each line of stdin is a row, a JSON list of token ids. Its logits go to stdout before the next
/// line is read: the number of tokens and the size of the vocabulary (`u32`), then `[tokens, vocabulary]` floats
/// (`f32`), all little-endian.
///
/// # Errors
/// A folder that cannot be opened, or a row that is none or that the model cannot take, by its number.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut folder = GenAiFolder::open(&args.folder, args.threads.into())?;
    answer(&mut folder, io::stdin().lock(), io::stdout().lock())
}

fn answer(folder: &mut GenAiFolder, rows: impl BufRead, mut answers: impl Write) -> anyhow::Result<()> {
    for (number, line) in rows.lines().enumerate() {
        let row = format!("row {} of stdin", number + 1);
        let tokens: Vec<u32> = serde_json::from_str(&line.context("stdin")?).with_context(|| row.clone())?;
        let logits = folder.logits(&tokens).context(row)?;
        let logits = logits.as_standard_layout();
        let floats = logits.as_slice().expect("an array in standard layout is one slice");
        let sizes = [logits.nrows(), logits.ncols()].map(|size| (size as u32).to_le_bytes());
        let written = answers.write_all(sizes.as_flattened());
        let written = written.and_then(|()| answers.write_all(bytemuck::cast_slice(floats)));
        written.and_then(|()| answers.flush()).context("stdout")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use exporters::genai::{GenAiOptions, Precision, export};
    use harness::tiny_model;
    use shared::ModelDir;

    use super::*;

    #[test]
    fn each_line_is_answered_with_its_logits() {
        let folder = tempfile::tempdir().unwrap();
        let (model, out) = (folder.path().join("model"), folder.path().join("genai"));
        tiny_model::TINY.write(&model, 1);
        tiny_model::write_tokenizer(&model);
        let options = GenAiOptions { precision: Precision::Fp32, max_positions: None };
        export(&ModelDir::open(&model).unwrap(), &out, &options).unwrap();
        let mut opened = GenAiFolder::open(&out, 1).unwrap();
        let mut answers = Vec::new();
        answer(&mut opened, "[1, 2, 3]\n[4]\n".as_bytes(), &mut answers).unwrap();
        let mut expected = Vec::new();
        for (row, length) in [(&[1, 2, 3][..], 3_u32), (&[4], 1)] {
            expected.extend([length, tiny_model::CHARACTERS as u32].iter().flat_map(|size| size.to_le_bytes()));
            expected.extend(opened.logits(row).unwrap().iter().flat_map(|logit| logit.to_le_bytes()));
        }
        assert_eq!(expected.len(), (4 * tiny_model::CHARACTERS + 4) * size_of::<f32>());
        assert!(answers == expected);
        for (line, words) in [("x\n", "row 1 of stdin"), ("[1]\n[]\n", "row 2 of stdin")] {
            let error = answer(&mut opened, line.as_bytes(), io::sink()).unwrap_err();
            assert!(format!("{error:#}").starts_with(words), "{error:#}");
        }
    }
}
