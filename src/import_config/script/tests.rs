//! Scripts as they are written for TRL, and what becomes of each argument.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::import_config::Imported;

/// A script in a folder of its own.
struct Script {
    _dir: TempDir,
    path: PathBuf,
}

impl Script {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.py");
        fs::write(&path, text).unwrap();
        Self { _dir: dir, path }
    }

    fn imported(&self) -> Imported {
        Imported::read(&self.path, None).unwrap()
    }
}

/// The options that a script becomes; nothing ends its start.
fn toml(text: &str) -> String {
    let imported = Script::new(text).imported();
    imported.require_all(|_| false).unwrap();
    options(&imported)
}

fn options(imported: &Imported) -> String {
    imported.to_toml().lines().skip(1).map(|line| format!("{line}\n")).collect()
}

/// The options that a YAML of TRL becomes.
fn of_yaml(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trl.yaml");
    fs::write(&path, text).unwrap();
    options(&Imported::read(&path, None).unwrap())
}

/// Why a script is refused as a whole.
fn refusal(text: &str) -> String {
    let script = Script::new(text);
    let message = format!("{:#}", Imported::read(&script.path, None).expect_err(text));
    assert!(!message.contains('\n') && message.contains("train.py: "), "{message}");
    message
}

/// Why a script that is read does not start.
fn missing(text: &str) -> String {
    format!("{:#}", Script::new(text).imported().require_all(|_| false).expect_err(text))
}

/// TRL's quick start with arguments, as its documentation has them.
const QUICKSTART: &str = r#"
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward, get_soft_overlong_punishment

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
SIZE = "0.5B"

model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16, revision="v2")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.pad_token = tokenizer.eos_token
model.config.use_cache = False

dataset = load_dataset("openai/gsm8k", "main")

training_args = GRPOConfig(
    output_dir=f"runs/qwen-{SIZE}",
    learning_rate=1e-6 * 2,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2 * 2,
    num_generations=8,
    max_steps=100,
    save_steps=-(-50),
    generation_kwargs={"stop": ["</answer>"], "top_k": -1},
    use_vllm=True,
    bf16=True,
    report_to="none",
)
trainer = GRPOTrainer(
    model=model,
    reward_funcs=[accuracy_reward, "org/RM", get_soft_overlong_punishment(100, soft_punish_cache=20)],
    args=training_args,
    train_dataset=dataset["train"],
    eval_dataset=dataset["test"],
    processing_class=tokenizer,
    peft_config=LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", modules_to_save=None),
)
trainer.train()
trainer.save_model()
"#;

#[test]
fn a_script_becomes_what_a_yaml_with_the_same_keys_becomes() {
    let yaml = r#"
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
model_init_kwargs: {torch_dtype: bfloat16, revision: v2}
reward_funcs: [accuracy_reward, org/RM, "soft_overlong:max_completion_len=100:soft_punish_cache=20"]
output_dir: runs/qwen-0.5B
learning_rate: 2e-6
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
num_generations: 8
max_steps: 100
save_steps: 50
generation_kwargs: {stop: [</answer>], top_k: -1}
use_vllm: true
bf16: true
report_to: none
dataset_name: openai/gsm8k
dataset_config: main
dataset_train_split: train
eval_dataset: openai/gsm8k
dataset_test_split: test
use_peft: true
lora_r: 16
lora_alpha: 8
lora_dropout: 0.0
lora_target_modules: [q_proj, v_proj]
"#;
    let found = toml(QUICKSTART);
    assert_eq!(found, of_yaml(yaml));
    for line in ["model = \"Qwen/Qwen2.5-0.5B-Instruct\"", "lora_alpha = 8", "model_revision = \"v2\""] {
        assert!(found.contains(line), "{line}: {found}");
    }
    // Defaults of TRL are filled in as for a YAML: the Trainer counts updates.
    let accumulated = "gradient_accumulation_steps=2, num_iterations=2, seed=3";
    let script = format!("import trl\ntrl.GRPOTrainer('m', 'r.py:f', trl.GRPOConfig('o', {accumulated}), None)\n");
    let keys = "model_name_or_path: m\nreward_funcs: r.py:f\noutput_dir: o\ngradient_accumulation_steps: 2\n\
        num_iterations: 2\nseed: 3\n";
    let (script, yaml) = (toml(&script), of_yaml(keys));
    assert_eq!(script, yaml);
    assert!(script.contains("# Defaults of TRL: save_steps = "), "{script}");
}

#[test]
fn names_are_followed_through_aliases_functions_and_the_main_block() {
    let text = r#"
import trl as t
from trl.trainer.grpo_config import GRPOConfig as Config
from datasets import load_dataset as load
from my_lib.rewards import style

SETTINGS = {"learning_rate": 3e-6, "beta": 0.04}

def main():
    rows = load("json", data_files={"train": "rows.jsonl"}, split="train")
    config = Config(output_dir="out", **SETTINGS, seed=-1 + 8)
    trainer = t.GRPOTrainer(args=config, model="m", train_dataset=rows, reward_funcs=style)
    trainer.train(resume_from_checkpoint=True)

if __name__ == "__main__":
    main()
"#;
    let yaml = "model_name_or_path: m\noutput_dir: out\nlearning_rate: 3e-6\nbeta: 0.04\nseed: 7\n\
        datasets: [{path: json, data_files: {train: rows.jsonl}, split: train}]\nreward_funcs: my_lib.rewards.style\n\
        resume_from_checkpoint: true\n";
    assert_eq!(toml(text), of_yaml(yaml));
    // Without a configuration the folder has TRL's name.
    let text = "from trl import *\nGRPOTrainer('org/Small', 'r.py:f', train_dataset='d.jsonl').train()\n";
    let found = toml(text);
    assert!(found.contains("output_dir = \"Small-GRPO\"") && found.contains("dataset = \"d.jsonl\""), "{found}");
}

const OWN: &str = r#"
from trl import GRPOConfig, GRPOTrainer
from beside import strict

def style(completions, **kwargs):
    return [1.0 for _ in completions]

def add(a: int, b: int) -> int:
    return a + b

class Maze:
    pass

def build():
    return GRPOTrainer("m", [style, strict, "length:target=9"], GRPOConfig("o"), tools=[add],
                       environment_factory={"maze": Maze})
"#;

#[test]
fn functions_of_the_script_are_named_by_its_path_unless_an_import_would_train() {
    let guarded = format!("{OWN}\nif __name__ == '__main__':\n    build().train()\n");
    let script = Script::new(&guarded);
    fs::write(script.path.with_file_name("beside.py"), "def strict(completions, **kwargs): ...\n").unwrap();
    let imported = script.imported();
    imported.require_all(|_| false).unwrap();
    let config = &imported.translation.config;
    let (path, folder) = (script.path.display().to_string(), script.path.parent().unwrap().display().to_string());
    assert_eq!(
        config.reward_funcs,
        [format!("{path}:style"), format!("{folder}/beside.py:strict"), "length:target=9".to_owned()]
    );
    assert_eq!(config.tools, [format!("{path}:add")]);
    assert!(imported.to_toml().contains(&format!("{path}:Maze")), "{}", imported.to_toml());
    let account = imported.account();
    let note = "note: importing `style`, `add`, `Maze` runs the top level of the script, which needs trl in";
    assert!(account.contains(note), "{account}");

    // What is loaded at the top level would be loaded with each import.
    let loading = format!("{OWN}\nfrom datasets import load_dataset\nrows = load_dataset('d')\n");
    let account = Script::new(&loading).imported().account();
    assert!(account.contains("`Maze` runs line 19 too, which loads a model or dataset"), "{account}");

    for (end, line) in [
        ("build().train()\n", 18),
        ("def run():\n    build().train()\n\nrun()\n", 21),
        ("if True:\n    build().train()\n", 19),
    ] {
        let message = missing(&format!("{OWN}\n{end}"));
        for (key, name) in [
            ("reward_funcs (--reward_funcs)", "my_rewards.py:style"),
            ("tools (--tools)", "my_tools.py:add"),
            ("environment_factory.maze", "my_env.py:Maze"),
        ] {
            assert!(message.contains(key) && message.contains(name), "{key}: {message}");
        }
        let words =
            format!("line {line}: the import of `style` from the script would begin the training; put this line");
        assert!(message.contains(&words), "{words}: {message}");
    }
}

/// The reasons for a value, and the option that makes up for it.
#[test]
fn what_only_a_run_of_the_script_would_tell_is_named_with_its_line() {
    let head = "from trl import GRPOConfig, GRPOTrainer\nimport os\nfrom datasets import load_dataset, Dataset\n\
        from functools import partial\nfrom trl.rewards import accuracy_reward\n";
    let reason = |before: &str, call: &str| missing(&format!("{head}{before}\nGRPOTrainer({call})\n"));
    for (before, value, words) in [
        ("", "float(os.environ['LR'])", "line 7: `float(os.environ['LR'])` is computed when the script runs"),
        ("lr = 1\nlr = 2", "lr", "line 8: `lr` is set more than once (lines 6, 7)"),
        ("lr = 1\nlr *= 2", "lr", "line 8: `lr` is set more than once (lines 6, 7)"),
        ("if os.name:\n    lr = 1", "lr", "line 8: `lr` is set in line 7 under a condition"),
        ("for lr in [1]: pass", "lr", "line 7: `lr` is set in line 6 under a condition, in a loop"),
        ("lr, x = 1, 2", "lr", "line 7: `lr` is set in line 6 to what is computed when the script runs"),
        ("x = [1]\nx.append(2)\nlr = x", "lr", "line 8: `x` is changed in line 7"),
        ("lr = lr", "lr", "line 6: `lr` is set in line 6 to what is computed"),
        ("", "2 ** 64", "line 7: `2 ** 64` is no text, truth value or finite number of 64 bits"),
    ] {
        let message = reason(before, &format!("'m', args=GRPOConfig(learning_rate={value})"));
        let words = format!("learning_rate (--learning_rate): {words}");
        assert!(message.contains(&words), "{words}: {message}");
    }
    for (before, call, words) in [
        ("", "model=load()", "model_name_or_path (--model): line 7: `load()` is computed when the script runs; name"),
        ("", "'m', args=parse()", "args: line 7: `parse()` is computed when the script runs; write the arguments out"),
        ("a = GRPOConfig('o')\na.beta = 1", "'m', args=a", "args: line 8: `a` is changed in line 7"),
        ("a = GRPOConfig('o')\nsetattr(a, 'b', 1)", "'m', args=a", "args: line 8: `a` is changed in line 7"),
        ("", "'m', args=GRPOConfig('o', **more)", "**more: line 7: `more` is computed when the script runs"),
        ("", "'m', args=GRPOConfig('o', 3)", "argument 2: write the arguments of a run out"),
        ("", "'m', **more", "**more: line 7: `more` is computed"),
        (
            "",
            "'m', lambda completions: 1",
            "reward_funcs (--reward_funcs): line 7: `lambda completions: 1` is a function",
        ),
        (
            "",
            "'m', [accuracy_reward, partial(f, 1), g]",
            "`partial(…)` is no literal; write a function of its own, \
            my_rewards.py:my_function; line 7: `g` is computed",
        ),
        ("def main():\n    def f(): pass\n    GRPOTrainer(reward_funcs=f)\nif 0: main()\n#", "", ""),
        (
            "d = load_dataset('a')\nd = d.map(f)",
            "'m', train_dataset=d",
            "dataset_name (--dataset): line 8: `d` is set \
            more than once (lines 6, 7); write its rows to a file, dataset.to_json(\"train.jsonl\")",
        ),
        ("", "'m', train_dataset=load_dataset('a').map(f)", "`load_dataset('a').map(f)` is computed"),
        ("", &format!("'m', train_dataset=load_dataset({})\n.map(f)", "'a', ".repeat(20)), "….map(…)` is computed"),
        ("", "'m', train_dataset=load_dataset('a', split='train[:10%]')", "the split `train[:10%]` is no whole one"),
        ("", "'m', train_dataset=Dataset.from_list([])", "`Dataset.from_list(…)` is no literal; write its rows"),
        ("", "'m', eval_dataset=load_dataset('csv')['x'].filter(f)", "eval_dataset (--eval_dataset): line 7: "),
        (
            "",
            "'m', train_dataset=load_dataset('json', data_files='*.json')",
            "datasets (--dataset): line 7: `datasets` is \
            left out, name files or folders as `dataset`: `data_files` has the pattern *.json",
        ),
        (
            "from transformers import AutoTokenizer as T",
            "'m', processing_class=T.from_pretrained('other')",
            "processing_class: line 7: it is the tokenizer of other, and the model is m; the tokenizer is that",
        ),
        (
            "from transformers import AutoTokenizer as T\nt = T.from_pretrained('m')\nt.chat_template = 'x'",
            "'m', processing_class=t",
            "processing_class: line 9: `t` is changed in line 8",
        ),
        (
            "from peft import PromptTuningConfig as P",
            "'m', peft_config=P()",
            "peft_config: line 7: \
            `PromptTuningConfig(…)` is no LoraConfig",
        ),
        (
            "from peft import LoraConfig",
            "'m', peft_config=LoraConfig(corda_config=1)",
            "peft_config.corda_config: of \
            adapters only",
        ),
        ("", "'m', optimizers=(opt, None)", "optimizers: line 7: `opt` is computed"),
        ("", "'m', rollout_func=roll", "rollout_func: line 7: `roll` is computed"),
    ]
    .into_iter()
    .filter(|(_, call, _)| !call.is_empty())
    {
        let message = reason(before, call);
        assert!(message.contains(words), "{words}: {message}");
    }
    let inner = "from trl import GRPOTrainer\ndef main():\n    def f(): pass\n    GRPOTrainer('m', f)\n";
    assert!(missing(inner).contains("line 4: `f` is defined in line 3 within `main`, where no import finds it"));
    // An option of the command line makes up for the argument.
    let script = Script::new(&format!("{head}GRPOTrainer('m', f, GRPOConfig(beta=b))\n"));
    let imported = script.imported();
    imported.require_all(|option| ["reward_funcs", "beta"].contains(&option)).unwrap();
}

/// Whatever way a line sets an argument, in functions of the script too: a run may come by it.
#[test]
fn an_argument_that_another_line_sets_is_named_with_that_line() {
    let script = |lines: &str| {
        let head = "from trl import GRPOConfig, GRPOTrainer\na = GRPOConfig('o', beta=0.1)\n";
        format!("{head}t = GRPOTrainer('m', 'r.py:f', a)\n{lines}\n")
    };
    for line in [
        "t.beta = 0.7",
        "t.args.beta = 0.7",
        "t.args.beta, x = 1, 2",
        "b = a; b.beta = 3",
        "d = {'a': a}; d['a'].beta = 3",
        "def f(args): args.beta = 3; return args",
        "def f(x): x.beta = 3; return x\nf(a)",
        "def f(y, x): x.beta = 3\nf(1, x=a)",
        "def f(args): args.beta += 1",
        "def f(config): config.beta: float = 1",
        "def f(training_args): del training_args.beta",
        "for t.args.beta in [1]: pass",
        "with o() as t.args.beta: pass",
        "def f(args): setattr(args, 'beta', 3)",
        "def f(args): object.__setattr__(args, 'beta', 3)",
        "def f(args): vars(args)['beta'] = 3",
        "def f(args): args.__dict__.update(beta=3)",
        "def f(args): args.__dict__.update({'beta': 3})",
        "f = lambda args: setattr(args, 'beta', 3)",
    ] {
        let message = missing(&script(line));
        let words = "beta (--beta): line 3: `beta` is changed in line 4 (`";
        assert!(message.contains(words), "{line}: {message}");
        Script::new(&script(line)).imported().require_all(|option| option == "beta").unwrap();
    }
    for (line, words) in [
        ("import copy\nt.args = copy.replace(a, beta=3)", "`args` is changed in line 5 (`t.args = copy.replace("),
        ("def f(args, k): setattr(args, k, 1)", "`args` is changed in line 4"),
        ("def f(args, **k): args.__dict__.update(k)", "`args` is changed in line 4"),
        ("def f(args): args.set_lr_scheduler(name='cosine')", "`args` is changed in line 4"),
        ("vars(a)['beta'] = 3", "`a` is changed in line 4"),
        ("a.__dict__.update(beta=3)", "`a` is changed in line 4"),
        ("a.set_lr_scheduler(name='cosine')", "`a` is changed in line 4"),
    ] {
        let message = missing(&script(line));
        assert!(message.contains(&format!("args: line 3: {words}")), "{line}: {message}");
    }
    // Each argument that the reader looks for has a rule with which it is refused.
    let reader = include_str!("reader.py");
    let list = reader.split_once("\nARGUMENTS = {").unwrap().1.split_once('}').unwrap().0;
    let names: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let lines: String = names.iter().map(|name| format!("    args.{name} = 1\n")).collect();
    let message = missing(&script(&format!("def f(args):\n{lines}")));
    assert!(names.len() > 80, "{names:?}");
    for (place, name) in names.iter().enumerate() {
        let words = format!(": line 3: `{name}` is changed in line {} (`args.{name} = 1`)", place + 5);
        assert!(message.contains(&words), "{words}: {message}");
    }
    // And it looks for each argument whose default is compared with TRL's.
    let text = std::fs::read_to_string(harness::golden_dir().join("trl_1.16_defaults.json")).unwrap();
    let defaults: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let missed: Vec<&String> = defaults.keys().filter(|field| !names.contains(&field.as_str())).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn what_is_clearly_another_object_may_have_attributes_of_the_same_names() {
    for lines in [
        "def show(args): print(args.beta); return args\nshow(a)",
        "class E:\n    def reset(self): self.seed = 1; self.tools = []; self.tools.append(1); self.lm.beta = 2",
        "class E:\n    def __init__(self, **k): self.__dict__.update(k)",
        "class E:\n    def __setattr__(self, k, v): super().__setattr__(k, v)",
        "class E: pass\ne = E()\ne.beta = 3",
        "t.model.config.use_cache = False",
        "t.model.config.temperature = 1",
        "t.model.generation_config.temperature = 1",
        "def f(tokenizer): tokenizer.model = 3",
        "t.processing_class.model = 1",
        "import torch\ntorch.seed = 3",
        "def style(completions): pass\nstyle.beta = 3",
        "from openai import OpenAI\nclient = OpenAI()\nclient.model = 'x'",
        "def f(parent, name): setattr(parent, name, 3)",
        "d = {}\nd['beta'] = 3\nbeta = 3\nbeta += 1",
        "def f(env): env.tools = []\nfor e in x: e.seed = 1",
        "def f(target, name): setattr(target, name, 3)",
        "from torch import nn\nclass B(nn.Module): pass\nclass E(B): pass\ne = E(); e.beta = 3",
        "class E:\n    def f(self): s = self; s.beta = 2\n    def g(cls): o = cls(); o.beta = 1",
        "import argparse\nn = argparse.ArgumentParser().parse_args()\nfor k in x: setattr(n, k, 1)",
        "import wandb\nrun = wandb.init(); run.config.beta = 3",
    ] {
        let head = "from trl import GRPOConfig, GRPOTrainer\na = GRPOConfig('o', beta=0.1)\n";
        let found = toml(&format!("{head}t = GRPOTrainer('m', 'r.py:f', a)\n{lines}\n"));
        assert!(found.contains("beta = 0.1\n"), "{lines}: {found}");
    }
}

/// What does not decide the training is named and ends nothing.
#[test]
fn arguments_without_a_counterpart_are_listed() {
    let text = "from trl import GRPOConfig, GRPOTrainer\n\
        GRPOTrainer('m', 'r.py:f', GRPOConfig('o', logging_dir=d(), unheard_of=u()), callbacks=[C()],\n\
        optimizers=(None, None), peft_config=None)\n";
    let imported = Script::new(text).imported();
    imported.require_all(|_| false).unwrap();
    let account = imported.account();
    for words in ["logging_dir: metrics are in", "unheard_of: not known", "callbacks: nothing is called back"] {
        assert!(account.contains(words), "{words}: {account}");
    }
    assert!(!account.contains("optimizers") && !account.contains("peft_config"), "{account}");
}

#[test]
fn a_script_that_does_not_train_once_is_refused_with_the_way_out() {
    let trainer = "from trl import GRPOTrainer, SFTTrainer\n";
    for (text, words) in [
        (
            "from trl import GRPOTrainer\nclass Mine(GRPOTrainer): pass\nMine('m')\n",
            "without a call of trl's GRPOTrainer",
        ),
        ("from trl import SFTTrainer\nSFTTrainer('m')\n", "without a call of trl's GRPOTrainer"),
        ("GRPOTrainer('m')\nGRPOTrainer('n')\n", "more than one GRPOTrainer (lines 2 and 3)"),
        ("for m in ['a']:\n    GRPOTrainer(m)\n", "line 3: makes GRPOTrainer in a loop"),
        ("x = (\n", "line 2: is no valid Python"),
    ] {
        let text = if text.starts_with("from") { text.to_owned() } else { format!("{trainer}{text}") };
        let message = refusal(&text);
        assert!(message.contains(words), "{words}: {message}");
    }
}

/// `tandem_rl` names the fields of a configuration in memory itself, since no script of it is read.
#[test]
fn fields_of_adapters_have_the_names_that_the_python_package_gives_them() {
    let package = include_str!("../../../xtask/src/dist/tandem_rl/_peft.py");
    let table = |name: &str| package.split_once(&format!("\n{name} = ")).unwrap().1.split_once('}').unwrap().0;
    let names = table("_NAMES");
    assert_eq!(names.matches(": ").count(), super::LORA.len(), "{names}");
    for (field, key) in super::LORA {
        assert!(names.contains(&format!("\"{field}\": \"{key}\",")), "{field}");
    }
    for field in super::LORA_WITHOUT_EFFECT {
        assert!(table("_OF_NO_MATTER").contains(&format!("\"{field}\",")), "{field}");
    }
    let defaults: serde_json::Value = serde_json::from_str(&format!("{}}}", table("_DEFAULTS"))).unwrap();
    for (field, value) in super::LORA_DEFAULTS {
        assert_eq!(defaults[field].as_f64(), Some(value), "{field}");
    }
    assert_eq!(defaults.as_object().unwrap().len(), super::LORA_DEFAULTS.len());
}
