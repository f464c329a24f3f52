//! Files whose content is not what their names say.

/// Beginnings of files, with the content that each one shows and the way out.
const BEGINNINGS: [(&[u8], &str); 8] = [
    (
        b"version https://git-lfs.github.com/spec/",
        "is a pointer of Git LFS and not the file: run `git lfs pull` in its repository, or download it from the Hub",
    ),
    (b"# xet version", "is a pointer of Xet and not the file: download it from the Hub"),
    (b"<!DOCTYPE", "is a web page and not the file: download it again, with a token where the repository asks for one"),
    (b"<!doctype", "is a web page and not the file: download it again, with a token where the repository asks for one"),
    (b"<html", "is a web page and not the file: download it again, with a token where the repository asks for one"),
    (b"PK\x03\x04", "is a zip archive, as PyTorch's weights are: save the model by transformers' save_pretrained"),
    (b"\x80\x02", "is a pickle, as PyTorch's old weights are: save the model by transformers' save_pretrained"),
    (
        b"GGUF",
        "is GGUF: take the model's own repository, or load it with transformers' `gguf_file` and save_pretrained",
    ),
];

/// The content that a file has instead of what its name says, with the way out, if its beginning shows that.
#[must_use]
pub fn foreign_content(content: &[u8]) -> Option<&'static str> {
    if content.is_empty() {
        return Some("is empty: download or write it again");
    }
    let known = BEGINNINGS.iter().find(|(beginning, _)| content.starts_with(beginning));
    known.map(|(_, words)| *words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_place_of_a_file_is_known_by_its_beginning() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n";
        assert!(foreign_content(pointer).unwrap().contains("git lfs pull"));
        assert!(foreign_content(b"<!DOCTYPE html><html>").unwrap().contains("web page"));
        assert!(foreign_content(b"PK\x03\x04archive/data.pkl").unwrap().contains("zip archive"));
        assert!(foreign_content(b"").unwrap().starts_with("is empty"));
        assert_eq!(foreign_content(b"{\"a\": 1}"), None);
        assert_eq!(foreign_content(b"\x10\0\0\0\0\0\0\0{}"), None, "safetensors");
    }
}
