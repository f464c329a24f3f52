//! The metadata of a file, in its order, and its bytes.

/// A value; the types are those that llama.cpp asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Floats(Vec<f32>),
    Integers(Vec<i32>),
    Flags(Vec<bool>),
}

impl Value {
    /// The number of its type in the format.
    fn kind(&self) -> u32 {
        match self {
            Self::U32(_) => 4,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            Self::Texts(_) | Self::Floats(_) | Self::Integers(_) | Self::Flags(_) => 9,
        }
    }

    fn write(&self, to: &mut Vec<u8>) {
        let list = |to: &mut Vec<u8>, kind: u32, count: usize| {
            to.extend(kind.to_le_bytes());
            to.extend((count as u64).to_le_bytes());
        };
        match self {
            Self::U32(n) => to.extend(n.to_le_bytes()),
            Self::F32(n) => to.extend(n.to_le_bytes()),
            Self::Bool(flag) => to.push(u8::from(*flag)),
            Self::Text(text) => write_text(text, to),
            Self::Texts(texts) => {
                list(to, 8, texts.len());
                texts.iter().for_each(|text| write_text(text, to));
            }
            Self::Floats(floats) => {
                list(to, 6, floats.len());
                to.extend(floats.iter().flat_map(|n| n.to_le_bytes()));
            }
            Self::Integers(integers) => {
                list(to, 5, integers.len());
                to.extend(integers.iter().flat_map(|n| n.to_le_bytes()));
            }
            Self::Flags(flags) => {
                list(to, 7, flags.len());
                to.extend(flags.iter().map(|flag| u8::from(*flag)));
            }
        }
    }
}

/// A text: its length, and its bytes.
pub(super) fn write_text(text: &str, to: &mut Vec<u8>) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

/// Keys and values, in the order in which they were added.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Metadata(Vec<(String, Value)>);

impl Metadata {
    pub fn add(&mut self, key: impl Into<String>, value: Value) {
        self.0.push((key.into(), value));
    }

    /// A size; sizes of a configuration fit into 32 bits.
    pub fn size(&mut self, key: impl Into<String>, size: usize) {
        self.add(key, Value::U32(u32::try_from(size).expect("sizes of a configuration are bounded")));
    }

    pub fn number(&mut self, key: impl Into<String>, number: f64) {
        self.add(key, Value::F32(number as f32));
    }

    pub fn text(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.add(key, Value::Text(text.into()));
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes of all keys and values.
    pub fn write(&self, to: &mut Vec<u8>) {
        for (key, value) in &self.0 {
            write_text(key, to);
            to.extend(value.kind().to_le_bytes());
            value.write(to);
        }
    }

    #[cfg(test)]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut metadata = Metadata::default();
        metadata.size("a", 3);
        metadata.add("b", Value::Texts(vec!["x".into(), "ä".into()]));
        metadata.add("c", Value::Bool(true));
        metadata.add("d", Value::Flags(vec![true, false]));
        let mut bytes = Vec::new();
        metadata.write(&mut bytes);
        let long = |n: u8| [n, 0, 0, 0, 0, 0, 0, 0];
        let expected = [
            &long(1)[..],
            b"a",
            &[4, 0, 0, 0, 3, 0, 0, 0],
            &long(1),
            b"b",
            &[9, 0, 0, 0, 8, 0, 0, 0],
            &long(2),
            &long(1),
            b"x",
            &long(2),
            "ä".as_bytes(),
            &long(1),
            b"c",
            &[7, 0, 0, 0, 1],
            &long(1),
            b"d",
            &[9, 0, 0, 0, 7, 0, 0, 0],
            &long(2),
            &[1, 0],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(metadata.len(), 4);
    }
}
