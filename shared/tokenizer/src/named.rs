//! Tokens that only the files beside `tokenizer.json` name.

use std::collections::HashSet;

use shared::model::model_dir::{NamedToken, NamedTokens};
use tokenizers::{AddedToken, Tokenizer};

/// Result of adding the tokens that the files beside a tokenizer name.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// Ids that decoded text leaves out, though the tokenizer would not.
    pub special: HashSet<u32>,
    /// Tokens that the tokenizer had not matched as whole tokens in texts: now it does.
    pub added: Vec<String>,
    /// Oddities, in words.
    pub remarks: Vec<String>,
}

/// Makes the named tokens known to a tokenizer, as transformers' `TokenizersBackend.__init__` does: a named token of
/// the vocabulary is matched as a whole from now on, and decoded text leaves out special ones. A token outside the
/// vocabulary is added if its id is known and the model, which has `rows` rows, has one for it.
pub(super) fn add(inner: &mut Tokenizer, named: &NamedTokens, rows: usize) -> Result<Named, String> {
    let mut found = Named::default();
    if named.split_special {
        found.remarks.push(
            "`split_special_tokens` of tokenizer_config.json is not followed: the text of a special token becomes that \
             token, as chat templates need"
                .into(),
        );
    }
    for token in &named.tokens {
        let is_added = inner.get_added_vocabulary().get_vocab().contains_key(&token.content);
        let known = inner.token_to_id(&token.content);
        let id = match (known, token.id) {
            (Some(known), Some(stated)) if known != stated => {
                found.remarks.push(format!(
                    "{:?} is token {known} in tokenizer.json and {stated} in tokenizer_config.json; {known} counts",
                    token.content
                ));
                known
            }
            (Some(known), _) => known,
            (None, stated) => match next(inner, stated, rows) {
                Ok(id) => id,
                Err(reason) => {
                    found
                        .remarks
                        .push(format!("{:?} is named as a token and read as plain text: {reason}", token.content));
                    continue;
                }
            },
        };
        if !is_added {
            inner.add_tokens([added(token)]).map_err(|e| e.to_string())?;
            found.added.push(token.content.clone());
        }
        if token.special && !inner.get_added_vocabulary().is_special_token(&token.content) {
            found.special.insert(id);
        }
    }
    Ok(found)
}

/// The id that a further token gets, if the files state that id.
fn next(inner: &Tokenizer, stated: Option<u32>, rows: usize) -> Result<u32, String> {
    let stated = stated.ok_or("no file has an id for it; save the tokenizer again with transformers")?;
    let vocabulary = inner.get_vocab_size(false) as u32;
    let after_added = inner.get_added_vocabulary().get_added_tokens_decoder().keys().max().map_or(0, |last| last + 1);
    let next = vocabulary.max(after_added);
    if stated as usize >= rows {
        return Err(format!("its id is {stated}, and the model has {rows} tokens"));
    }
    if stated != next {
        return Err(format!("its id is {stated}, and the next one that tokenizer.json leaves free is {next}"));
    }
    Ok(stated)
}

fn added(token: &NamedToken) -> AddedToken {
    AddedToken::from(token.content.clone(), token.special)
        .single_word(token.single_word)
        .lstrip(token.lstrip)
        .rstrip(token.rstrip)
        .normalized(token.normalized)
}
