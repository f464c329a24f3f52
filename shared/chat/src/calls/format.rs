//! Families of models: the words by which a template shows its family, and the marks of a turn.

use crate::ChatTemplate;

/// How a family of models writes calls. The names are those of the first models that had the format; later ones kept
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Qwen2.5, Qwen3, Hermes and others.
    Qwen,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3.5, Qwen3 Coder.
    Qwen35,
    /// The calls of [`Format::Qwen35`], in turns whose thoughts have an end and no beginning.
    Nemotron3,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM-4 MoE.
    Glm4Moe,
    /// `{"name": …, "parameters": {…}}` as the turn: Llama 3.1 and 3.2.
    Llama31,
    /// ` to=functions.NAME<|channel|>commentary json<|message|>{…}<|call|>`: gpt-oss.
    GptOss,
    /// `<|tool_call_start|>[NAME(KEY=VALUE, …), …]<|tool_call_end|>`: LFM2.5.
    Lfm25,
    /// `<|tool_call>call:NAME{KEY:VALUE, …}<tool_call|>`, with texts between `<|"|>`: Gemma 4.
    Gemma4,
}

/// Marks of a turn.
#[derive(Debug)]
pub(super) struct Marks {
    /// Openings of the assistant's turn, one of which ends a prompt, or nearly so.
    pub anchors: &'static [&'static str],
    /// What a template may write behind the opening without beginning anything.
    pub after_anchor: &'static [&'static str],
    /// Around thoughts.
    pub thinking: Option<(&'static str, &'static str)>,
    /// Whether thoughts begin with the turn, if their end comes at all.
    pub thinks_first: bool,
    /// Around the answer, if all text outside of it is no answer.
    pub answer: Option<(&'static str, &'static str)>,
    /// Ends of a call; each is as good as another.
    pub call_ends: &'static [&'static str],
    /// Whether the end of the turn ends a call too.
    pub turn_ends_call: bool,
    /// Ends of the turn.
    pub turn_ends: &'static [&'static str],
    /// What templates write at the end of an earlier turn. gpt-oss has another token there than the one that ended the
    /// turn when it was drawn; GLM and Gemma 4 have the first token of the message behind it.
    pub history_ends: &'static [&'static str],
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 8] = [
        Self::Qwen,
        Self::Qwen35,
        Self::Nemotron3,
        Self::Glm4Moe,
        Self::Llama31,
        Self::GptOss,
        Self::Lfm25,
        Self::Gemma4,
    ];

    /// The format in which a template writes the calls of earlier turns, by the marks in its source. None if it has no
    /// marks of a format that is known here.
    #[must_use]
    pub fn of_source(source: &str) -> Option<Self> {
        let has = |words: &[&str]| words.iter().all(|word| source.contains(word));
        Some(match () {
            () if has(&["<|tool_call>call:"]) => Self::Gemma4,
            () if has(&["<|tool_call_start|>"]) => Self::Lfm25,
            () if has(&["<|channel|>commentary", "functions."]) => Self::GptOss,
            () if has(&["<tool_call>", "<arg_key>"]) => Self::Glm4Moe,
            () if has(&["<tool_call>", "<function=", "<parameter="]) => {
                // Nemotron writes `<think></think>` before an answer without thoughts, Qwen3.5 never does on one line.
                if has(&["<think></think>"]) { Self::Nemotron3 } else { Self::Qwen35 }
            }
            () if has(&["<tool_call>", "</tool_call>"]) => Self::Qwen,
            () if has(&["<|start_header_id|>", "tool_call", "\"parameters\":"]) => Self::Llama31,
            () => return None,
        })
    }

    /// The format of a template, or of its template for tools.
    pub(super) fn of_template(template: &ChatTemplate) -> Option<Self> {
        template.of_source_with_tools(Self::of_source)
    }

    /// The models that have this format, for a person.
    #[must_use]
    pub fn models(self) -> &'static str {
        match self {
            Self::Qwen => "Qwen2.5 and Qwen3",
            Self::Qwen35 => "Qwen3.5",
            Self::Nemotron3 => "Nemotron 3",
            Self::Glm4Moe => "GLM-4 MoE",
            Self::Llama31 => "Llama 3.1",
            Self::GptOss => "gpt-oss",
            Self::Lfm25 => "LFM2.5",
            Self::Gemma4 => "Gemma 4",
        }
    }

    /// The key under which the family's template reads the thoughts of a message.
    #[must_use]
    pub fn reasoning_key(self) -> &'static str {
        match self {
            Self::GptOss | Self::Lfm25 => "thinking",
            _ => "reasoning_content",
        }
    }

    /// Tokens that templates of the family write at the end of an earlier turn, whatever token ended it when it was
    /// drawn.
    #[must_use]
    pub fn ends_in_history(self) -> &'static [&'static str] {
        self.marks().history_ends
    }

    pub(super) fn marks(self) -> &'static Marks {
        match self {
            Self::Qwen | Self::Qwen35 => &QWEN,
            Self::Nemotron3 => &NEMOTRON3,
            Self::Glm4Moe => &GLM4_MOE,
            Self::Llama31 => &LLAMA31,
            Self::GptOss => &GPT_OSS,
            Self::Lfm25 => &LFM25,
            Self::Gemma4 => &GEMMA4,
        }
    }

    /// What a prompt holds of the turn that goes on after it: the text behind the last opening of the assistant's turn.
    pub(super) fn begun(self, prompt: &str) -> &str {
        let marks = self.marks();
        let opening = marks.anchors.iter().filter_map(|anchor| Some(prompt.rfind(anchor)? + anchor.len())).max();
        let Some(opening) = opening else {
            // Another template with this format. It may still have begun the thoughts.
            let thinks = marks.thinking.is_some_and(|(begin, _)| prompt.trim_end().ends_with(begin));
            return if thinks { marks.thinking.map_or("", |(begin, _)| begin) } else { "" };
        };
        let begun = &prompt[opening..];
        marks.after_anchor.iter().find_map(|word| begun.strip_prefix(word)).unwrap_or(begun)
    }
}

const THINK: Option<(&str, &str)> = Some(("<think>", "</think>"));

static QWEN: Marks = Marks {
    anchors: &["<|im_start|>assistant\n"],
    after_anchor: &[],
    thinking: THINK,
    thinks_first: false,
    answer: None,
    call_ends: &["</tool_call>"],
    turn_ends_call: false,
    turn_ends: &["<|im_end|>"],
    history_ends: &["<|im_end|>"],
};

static NEMOTRON3: Marks = Marks {
    after_anchor: &["<think></think>", "<think>\n", "<think>"],
    thinks_first: true,
    anchors: QWEN.anchors,
    thinking: THINK,
    answer: None,
    call_ends: QWEN.call_ends,
    turn_ends_call: false,
    turn_ends: QWEN.turn_ends,
    history_ends: QWEN.history_ends,
};

static GLM4_MOE: Marks = Marks {
    anchors: &["<|assistant|>"],
    after_anchor: &[],
    thinking: THINK,
    thinks_first: false,
    answer: None,
    call_ends: QWEN.call_ends,
    turn_ends_call: false,
    turn_ends: &["<|user|>", "<|observation|>"],
    history_ends: &["<|user|>", "<|observation|>"],
};

static LLAMA31: Marks = Marks {
    anchors: &["<|start_header_id|>assistant<|end_header_id|>\n\n"],
    after_anchor: &[],
    thinking: None,
    thinks_first: false,
    answer: None,
    call_ends: &["}<|eot_id|>", "}<|eom_id|>", "}<|end_of_text|>"],
    turn_ends_call: true,
    turn_ends: &["<|eot_id|>", "<|eom_id|>"],
    history_ends: &["<|eot_id|>", "<|eom_id|>"],
};

static GPT_OSS: Marks = Marks {
    anchors: &["<|start|>assistant"],
    after_anchor: &[],
    thinking: Some(("<|channel|>analysis<|message|>", "<|end|>")),
    thinks_first: false,
    answer: Some(("<|channel|>final<|message|>", "<|return|>")),
    call_ends: &["<|call|>"],
    turn_ends_call: true,
    turn_ends: &[],
    history_ends: &["<|call|>", "<|end|>", "<|return|>"],
};

static LFM25: Marks = Marks {
    anchors: QWEN.anchors,
    after_anchor: &[],
    thinking: THINK,
    thinks_first: false,
    answer: None,
    call_ends: &["<|tool_call_end|>"],
    turn_ends_call: false,
    turn_ends: QWEN.turn_ends,
    history_ends: QWEN.history_ends,
};

static GEMMA4: Marks = Marks {
    anchors: &["<|turn>model\n", "<tool_response|>"],
    after_anchor: &[],
    thinking: Some(("<|channel>thought\n", "<channel|>")),
    thinks_first: false,
    answer: None,
    call_ends: &["<tool_call|>"],
    turn_ends_call: false,
    turn_ends: &["<turn|>", "<|tool_response>", "<eos>"],
    history_ends: &["<turn|>", "<|tool_response>"],
};
