//! Writes a model as folders for ONNX Runtime GenAI, one for each number format: `genai MODEL OUT`.

use std::{env, error::Error, path::Path};

use exporters::genai::{GenAiOptions, Precision, export};
use shared::ModelDir;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [model, out] = words.as_slice() else {
        return Err("two words are needed: a Hugging Face directory and the folder to write into".into());
    };
    let model = ModelDir::open(model)?;
    for precision in Precision::ALL {
        let name = serde_json::to_value(precision)?.as_str().unwrap_or_default().to_owned();
        let written = export(&model, &Path::new(out).join(&name), &GenAiOptions { precision, max_positions: None })?;
        println!("{name} {}", written.data_bytes);
    }
    Ok(())
}
