//! `tandem serve` with adapters: each answers as `rollout generate` does with it, whatever else is asked, loaded,
//! replaced or unloaded meanwhile.

use std::{collections::HashMap, fs, io::Read, net::TcpStream, thread};

use exporters::{AdapterConfig, Checkpoint, fill_adapter};
use harness::{
    cli,
    tiny_model::{ModelFolder, SMALL, write_tokenizer},
    training,
};
use serde_json::{Value, json};
use shared::{ModelDir, generation::rng::Stream};

use super::serve::{Serve, generated, model};

const PROMPTS: [&str; 3] = ["one and two", "Once upon a time", "(x) = 7;"];

/// Writes an adapter on a model of the folder, with random updates.
fn write_adapter(folder: &ModelFolder, model: &str, name: &str, modules: &[&str]) -> String {
    let (base, dir) = (ModelDir::open(folder.path(model)).unwrap(), folder.path(name));
    let config = AdapterConfig {
        base_model_name_or_path: format!("../{model}"),
        base_blake3: Some(Checkpoint::open(&base).unwrap().weights_blake3()),
        r: 2,
        lora_alpha: 4.0,
        lora_dropout: 0.0,
        target_modules: modules.iter().map(|&module| module.to_owned()).collect(),
        use_rslora: false,
        wrapped: false,
    };
    let parameters = || base.config().parameters();
    let shapes: HashMap<_, _> = config.tensors(parameters()).unwrap().into_iter().collect();
    let mut stream = Stream::new(&name.bytes().map(u64::from).collect::<Vec<_>>());
    fs::create_dir(&dir).unwrap();
    fill_adapter(&dir, &config, parameters(), &mut |tensor| {
        Ok((0..shapes[tensor].iter().product()).map(|_| 0.3 * stream.next_normal() as f32).collect())
    })
    .unwrap();
    dir.display().to_string()
}

/// The model with two adapters, and their paths.
fn adapted() -> (ModelFolder, String, String) {
    let folder = model();
    let sql = write_adapter(&folder, "model", "sql", &["q_proj", "v_proj"]);
    let poem = write_adapter(&folder, "model", "poem", &["q_proj", "o_proj", "gate_proj", "down_proj"]);
    (folder, sql, poem)
}

/// Asserts that a model answers as these rows say.
fn check(serve: &Serve, model: &str, rows: &[Value]) {
    let body = json!({ "model": model, "prompt": PROMPTS, "max_tokens": 24, "temperature": 0, "logprobs": 1,
        "return_token_ids": true });
    let answer = serve.post("/v1/completions", &body);
    assert_eq!(answer["model"], model);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), rows.len());
    for (choice, row) in choices.iter().zip(rows) {
        assert_eq!(choice["token_ids"], row["token_ids"], "{model}: {choice} {row}");
        assert_eq!(choice["logprobs"]["token_logprobs"], row["logprobs"], "{model}");
    }
}

fn text(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn each_name_answers_as_generate_does_with_its_adapter_also_when_all_are_asked_at_once() {
    let (folder, sql, poem) = adapted();
    let names = [("tiny", "model"), ("sql", "sql"), ("poem", "poem")];
    let rows = names.map(|(_, of)| generated(&folder, of, &PROMPTS.map(|prompt| json!(prompt))));
    assert!(rows[0] != rows[1] && rows[1] != rows[2] && rows[2] != rows[0], "they differ");
    let serve = Serve::start(&folder, &["--lora-modules", &format!("sql={sql}"), &format!("poem={poem}")]);
    names.iter().zip(&rows).for_each(|((name, _), rows)| check(&serve, name, rows));
    thread::scope(|scope| {
        for number in 0..12 {
            let ((name, _), rows, serve) = (names[number % 3], &rows[number % 3], &serve);
            let other = json!({ "model": names[(number + 1) % 3].0, "prompt": "other", "max_tokens": 90, "n": 2 });
            scope.spawn(move || serve.post("/v1/completions", &other));
            scope.spawn(move || (0..3).for_each(|_| check(serve, name, rows)));
        }
    });
    // The other routes, and a prompt that is scored.
    let (ids, chat) = (&rows[1][0]["prompt_ids"], json!([{ "role": "user", "content": "hello" }]));
    let body = json!({ "model": "sql", "token_ids": ids, "sampling_params": { "max_tokens": 24, "temperature": 0 } });
    let answer = serve.post("/inference/v1/generate", &body);
    assert_eq!(answer["choices"][0]["token_ids"], rows[1][0]["token_ids"]);
    let talk = |model: &str| {
        let body = json!({ "model": model, "messages": chat, "max_tokens": 24, "temperature": 0 });
        let answer = serve.post("/v1/chat/completions", &body);
        assert_eq!(answer["model"], model);
        answer["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(talk("poem"), generated(&folder, "poem", std::slice::from_ref(&chat))[0]["text"]);
    let scores = |model: &str| {
        let body = json!({ "model": model, "prompt": "one and two", "max_tokens": 0, "echo": true, "logprobs": 0 });
        serve.post("/v1/completions", &body)["choices"][0]["logprobs"]["token_logprobs"].clone()
    };
    assert!(scores("tiny") != scores("sql") && scores("sql") != scores("poem"));

    let models = text(serve.get("/v1/models"));
    let models: Value = serde_json::from_str(models.split_once("\r\n\r\n").unwrap().1).unwrap();
    let row = |model: &Value| ["id", "parent", "root"].map(|key| model[key].clone());
    let listed: Vec<_> = models["data"].as_array().unwrap().iter().map(row).collect();
    let expected = [
        [json!("tiny"), Value::Null, json!("tiny")],
        [json!("poem"), json!("tiny"), json!(poem)],
        [json!("sql"), json!("tiny"), json!(sql)],
    ];
    assert_eq!(listed, expected);
    assert!(text(serve.get("/v1/models/sql")).contains("\"parent\":\"tiny\""));
    let (status, refusal) = serve.answer("/v1/completions", &json!({ "model": "prose", "prompt": "a" }));
    assert_eq!(status, 404);
    assert!(refusal.contains("there is no model `prose` here; the models are `tiny`, `poem`, `sql`"), "{refusal}");
    let metrics = text(serve.get("/metrics"));
    for (route, name, count) in
        [("/inference/v1/generate", "sql", 1), ("/v1/chat/completions", "poem", 1), ("/v1/completions", "poem", 18)]
    {
        let line =
            format!("tandem_http_requests_total{{route=\"{route}\",status=\"200\",model_name=\"{name}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

#[test]
fn what_runs_keeps_the_adapter_that_it_began_with() {
    let (folder, sql, poem) = adapted();
    let rows = ["model", "sql", "poem"].map(|of| (of, generated(&folder, of, &PROMPTS.map(|prompt| json!(prompt)))));
    let rows = |of: &str| &rows.iter().find(|(name, _)| *name == of).unwrap().1[..];
    let flags = ["--allow-runtime-lora-updating", "--max-loras", "1", "--max-num-seqs", "40"];
    let serve = Serve::start(&folder, &flags);
    let load = |name: &str, path: &str| {
        serve.answer("/v1/load_lora_adapter", &json!({ "lora_name": name, "lora_path": path }))
    };
    let unload = |name: &str| serve.answer("/v1/unload_lora_adapter", &json!({ "lora_name": name }));
    let added = |name: &str| (200, format!("Success: LoRA adapter '{name}' added successfully."));
    let refused = |(status, body): (u16, String)| {
        let error = serde_json::from_str::<Value>(&body).unwrap_or_else(|e| panic!("{e}: {body}"))["error"].clone();
        (status, error["param"].as_str().unwrap_or_default().to_owned(), error["message"].as_str().unwrap().to_owned())
    };
    assert_eq!(load("sql", &sql), added("sql"));
    check(&serve, "sql", rows("sql"));

    let body = |model: &str, stream: bool| {
        json!({ "model": model, "prompt": "once", "max_tokens": 1900, "n": 16, "seed": 3, "ignore_eos": true,
            "logprobs": 0, "return_token_ids": true, "stream": stream })
    };
    let alone = ["tiny", "sql"].map(|model| serve.post("/v1/completions", &body(model, false))["choices"].clone());
    let streams = ["tiny", "sql"].map(|model| {
        let mut stream = serve.send("/v1/completions", &body(model, true));
        stream.read_exact(&mut [0; 300]).unwrap();
        stream
    });
    // A replacement, for which the old one still runs, and then another one.
    assert_eq!(load("sql", &poem), added("sql"));
    check(&serve, "sql", rows("poem"));
    let (status, _, message) = refused(load("sql", &poem));
    assert!(status == 429 && message.contains("requests still use adapters"), "{status}: {message}");
    assert_eq!(unload("sql"), (200, "Success: LoRA adapter 'sql' removed successfully.".into()));
    let (status, param, message) = refused(serve.answer("/v1/completions", &json!({ "model": "sql", "prompt": "a" })));
    assert_eq!((status, &*param), (404, "model"), "{message}");
    let metrics = text(serve.get("/metrics"));
    assert!(metrics.contains("\ntandem_num_requests_running 32\n"), "they must still run to test anything: {metrics}");
    for (stream, alone) in streams.into_iter().zip(&alone) {
        let events = text(stream);
        let chunks = events.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let (mut ids, mut logprobs) = (vec![Vec::new(); 16], vec![Vec::new(); 16]);
        for choice in chunks.filter_map(|chunk| chunk["choices"].get(0).cloned()) {
            let index = choice["index"].as_u64().unwrap() as usize;
            ids[index].extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
            logprobs[index].extend(choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten().cloned());
        }
        for (index, alone) in alone.as_array().unwrap().iter().enumerate() {
            // The first event was read as bytes.
            let (all, figures) = (alone["token_ids"].as_array().unwrap(), &alone["logprobs"]["token_logprobs"]);
            assert!(ids[index].len() > 1800 && all.ends_with(&ids[index]), "completion {index}");
            assert!(figures.as_array().unwrap().ends_with(&logprobs[index]), "completion {index}");
        }
    }

    // Nothing runs with the old ones any more.
    assert_eq!(load("new", &poem), added("new"));
    check(&serve, "new", rows("poem"));
    check(&serve, "tiny", rows("model"));
    assert_eq!(load("new", &sql), added("new"));
    check(&serve, "new", rows("sql"));
    let (status, param, message) = refused(load("other", &sql));
    assert!(status == 400 && param == "lora_name" && message.contains("1 adapters already (--max-loras)"), "{message}");
    let (status, param, message) = refused(load("tiny", &sql));
    assert!(status == 400 && param == "lora_name" && message.contains("the model that is served"), "{message}");
    for name in ["", "a\nb", &"a".repeat(257)] {
        let (status, param, message) = refused(load(name, &sql));
        assert!(status == 400 && param == "lora_name" && message.contains("1 to 256 characters"), "{message}");
    }
    assert_eq!(refused(unload("other")).0, 404);
    for path in ["/no/such/folder", "owner/name", &folder.path("model").display().to_string()] {
        let (status, param, message) = refused(load("new", path));
        assert!(status == 400 && param == "lora_path" && message.contains(path), "{message}");
    }
    let more = json!({ "lora_name": "new", "lora_path": sql, "rank": 3 });
    assert_eq!(refused(serve.answer("/v1/load_lora_adapter", &more)).1, "rank");
    check(&serve, "new", rows("sql"));
}

#[test]
fn of_a_run_the_adapter_of_its_newest_checkpoint_is_served() {
    let folder = model();
    let path = |name: &str| folder.path(name).display().to_string();
    fs::write(folder.path("rows.jsonl"), "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n".repeat(4)).unwrap();
    let config = format!(
        "model = {:?}\ndataset = {:?}\nreward_funcs = [\"reward.py:variety\"]\nmax_steps = 2\nsave_steps = 1\n\
         num_generations = 2\ngeneration_batch_size = 4\nper_device_train_batch_size = 4\n\
         max_completion_length = 8\nlearning_rate = 1e-2\nuse_peft = true\nlora_r = 4\n",
        path("model"),
        path("rows.jsonl")
    );
    let reward = "def variety(completions, **_):\n    return [sum(map(ord, text)) % 97 / 97 for text in completions]\n";
    fs::write(folder.path("reward.py"), reward).unwrap();
    let _ = training::train(&folder.path(""), "run", &config);
    let rows = ["model", "run/checkpoint-1", "run/checkpoint-2"]
        .map(|of| generated(&folder, of, &PROMPTS.map(|prompt| json!(prompt))));
    assert!(rows[0] != rows[1] && rows[1] != rows[2], "they differ");
    let modules = [format!("of-run={}", path("run")), format!("first={}", path("run/checkpoint-1"))];
    let serve = Serve::start(&folder, &["--lora-modules", &modules[0], &modules[1]]);
    check(&serve, "of-run", &rows[2]);
    check(&serve, "first", &rows[1]);
    check(&serve, "tiny", &rows[0]);
}

#[test]
fn adapters_that_may_come_are_in_the_plan_of_memory() {
    let folder = model();
    let model = folder.path("model").display().to_string();
    let most = u32::MAX.to_string();
    let words = ["serve", "--model", &model, "--port", "0", "--allow-runtime-lora-updating", "--max-loras", &most];
    let finished = cli::run("tandem", words);
    let refusal = finished.refusal();
    assert!(refusal.starts_with("error: beside ") && refusal.contains(" for adapters (--max-loras): "), "{refusal}");
}

#[test]
fn adapters_that_cannot_be_served_are_refused_before_the_port_opens() {
    let (folder, sql, _) = adapted();
    let path = |name: &str| folder.path(name).display().to_string();
    SMALL.write(&folder.path("small"), 2);
    write_tokenizer(&folder.path("small"));
    harness::tiny_model::TINY.write(&folder.path("twin"), 5);
    let [small, twin] = ["small", "twin"].map(|base| write_adapter(&folder, base, &format!("on-{base}"), &["q_proj"]));
    let sql = format!("sql={sql}");
    let refused = |model: &str, flags: &[&str]| {
        let model = path(model);
        let words = ["serve", "--model", &model, "--served-model-name", "tiny", "--port", "0"];
        cli::run("tandem", words.iter().chain(flags)).refusal().to_owned()
    };
    let modules = |modules: &[&str]| refused("model", &[&["--lora-modules"], modules].concat());
    assert_eq!(modules(&["sql"]), "error: --lora-modules sql: an adapter is given as NAME=PATH");
    assert_eq!(modules(&[&sql, &sql]), "error: --lora-modules sql: two adapters have this name");
    let taken = modules(&[&sql.replacen("sql=", "tiny=", 1)]);
    assert_eq!(taken, "error: --lora-modules tiny: the model has this name (--served-model-name)");
    for (of, part) in [
        ("/no/such".to_owned(), "/no/such"),
        (path("model"), "is a whole model and no adapter: serve it with --model"),
        (twin, "is an adapter for other weights than those in"),
        (small, "the base ask for"),
    ] {
        let error = modules(&[&format!("a={of}")]);
        assert!(error.starts_with("error: --lora-modules a: ") && error.contains(part), "{error}");
    }
    let with = |flags: &[&str]| refused("model", &[&["--lora-modules", &sql], flags].concat());
    assert_eq!(with(&["--kernels", "stock"]), "error: --lora-modules needs --kernels packed");
    assert!(with(&["--device", "cuda"]).starts_with("error: --lora-modules needs --device cpu"));
    let two = refused("model", &["--lora-modules", &sql, &sql.replacen("sql=", "b=", 1), "--max-loras", "1"]);
    assert_eq!(two, "error: --max-loras 1: --lora-modules names 2");
    let alone = refused("model", &["--max-loras", "1"]);
    assert_eq!(alone, "error: --max-loras needs --lora-modules or --allow-runtime-lora-updating");
    let on_adapter = refused("sql", &["--lora-modules", &sql]);
    assert!(
        on_adapter.starts_with("error: --lora-modules: adapters need a whole model: let --model name"),
        "{on_adapter}"
    );
}
