//! The tables in memory.

/// Versions from `min` to `max`, both included.
#[derive(Clone, Copy, PartialEq)]
pub struct Range {
    pub min: i16,
    pub max: i16,
}

impl Range {
    pub fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    pub fn covers(self, other: Range) -> bool {
        self.min <= other.min && other.max <= self.max
    }

    /// Rust that is true for a version `v` of `outer` in this range; `None` if it always is.
    pub fn condition(self, outer: Range) -> Option<String> {
        match (self.min > outer.min, self.max < outer.max) {
            (false, false) => None,
            (true, false) => Some(format!("v >= {}", self.min)),
            (false, true) => Some(format!("v <= {}", self.max)),
            (true, true) if self.min == self.max => Some(format!("v == {}", self.min)),
            (true, true) => Some(format!("({}..={}).contains(&v)", self.min, self.max)),
        }
    }
}

pub struct Api {
    pub key: i16,
    pub name: String,
    pub about: String,
    pub request: Message,
    pub response: Message,
}

/// A request or response; the first structure is the message itself.
pub struct Message {
    pub name: String,
    pub versions: Range,
    pub flexible: Option<i16>,
    pub structs: Vec<Struct>,
}

impl Message {
    pub fn find(&self, name: &str) -> Option<&Struct> {
        self.structs.iter().find(|candidate| candidate.name == name)
    }

    pub fn is_flexible(&self, version: i16) -> bool {
        self.flexible.is_some_and(|from| version >= from)
    }
}

pub struct Struct {
    pub name: String,
    /// The versions in which it can occur.
    pub versions: Range,
    pub fields: Vec<Field>,
}

pub struct Field {
    pub name: String,
    pub base: Base,
    pub array: bool,
    pub versions: Range,
    pub null: Option<Range>,
    pub tag: Option<u32>,
    pub default: Option<String>,
    pub ignorable: bool,
}

#[derive(Clone, PartialEq)]
pub enum Base {
    Bool,
    I8,
    I16,
    U16,
    I32,
    I64,
    F64,
    String,
    Bytes,
    Uuid,
    Error,
    Records,
    RecordParts,
    Struct(String),
}

impl Base {
    pub fn parse(text: &str) -> Base {
        match text {
            "bool" => Base::Bool,
            "i8" => Base::I8,
            "i16" => Base::I16,
            "u16" => Base::U16,
            "i32" => Base::I32,
            "i64" => Base::I64,
            "f64" => Base::F64,
            "string" => Base::String,
            "bytes" => Base::Bytes,
            "uuid" => Base::Uuid,
            "error" => Base::Error,
            "records" => Base::Records,
            "record_parts" => Base::RecordParts,
            name => Base::Struct(name.to_owned()),
        }
    }

    /// The Rust type of one value.
    pub fn rust(&self) -> &str {
        match self {
            Base::Bool => "bool",
            Base::I8 => "i8",
            Base::I16 => "i16",
            Base::U16 => "u16",
            Base::I32 => "i32",
            Base::I64 => "i64",
            Base::F64 => "f64",
            Base::String => "KString",
            Base::Bytes | Base::Records => "Bytes",
            Base::Uuid => "Uuid",
            Base::Error => "ErrorCode",
            Base::RecordParts => "Records",
            Base::Struct(name) => name,
        }
    }

    /// The stem of the methods of `Reader` and `Writer`.
    pub fn method(&self) -> &str {
        match self {
            Base::String => "string",
            Base::Bytes => "bytes",
            Base::Uuid => "uuid",
            Base::Error => "error",
            Base::Records => "records",
            Base::RecordParts => "record_parts",
            Base::Struct(_) => "struct",
            number => number.rust(),
        }
    }

    /// Values without a length, which are written without an error.
    pub fn is_fixed(&self) -> bool {
        !matches!(self, Base::String | Base::Bytes | Base::Records | Base::RecordParts | Base::Struct(_))
    }
}

impl Field {
    /// The Rust type.
    pub fn rust(&self) -> String {
        let mut text = self.base.rust().to_owned();
        if self.array {
            text = format!("Vec<{text}>");
        }
        if self.null.is_some() {
            text = format!("Option<{text}>");
        }
        text
    }

    /// The name in Rust, where some words are taken.
    pub fn ident(&self) -> String {
        match self.name.as_str() {
            "type" | "match" => format!("r#{}", self.name),
            name => name.to_owned(),
        }
    }
}
