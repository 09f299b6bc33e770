//! The structures of one API: fields, defaults, reading and writing.

use std::fmt::Write;

use crate::expressions::{default, is_set, label, read, write};
use crate::model::{Api, Field, Message, Range, Struct};

/// Appends a line of code to a `String`.
macro_rules! line {
    ($out:expr, $($argument:tt)*) => {
        $out.push_str(&format!($($argument)*));
        $out.push('\n');
    };
}
pub(crate) use line;

/// `ListOffsets` becomes `list_offsets`.
pub fn snake(name: &str) -> String {
    let mut text = String::new();
    for symbol in name.chars() {
        if symbol.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(symbol.to_lowercase());
    }
    text
}

pub fn api(out: &mut String, api: &Api) {
    line!(
        out,
        "/// {} (key {}), versions {} to {}.",
        api.name,
        api.key,
        api.request.versions.min,
        api.request.versions.max
    );
    line!(out, "///\n/// {}", api.about);
    line!(out, "pub mod {} {{", snake(&api.name));
    line!(out, "#[allow(unused_imports)]\nuse super::generated::*;");
    for message in [&api.request, &api.response] {
        for holder in &message.structs {
            definition(out, message, holder);
            line!(out, "impl {} {{", holder.name);
            reading(out, message, holder);
            writing(out, message, holder);
            line!(out, "}}");
        }
        root(out, api, message);
    }
    line!(out, "impl Request for {} {{ type Response = {}; }}", api.request.name, api.response.name);
    line!(out, "impl Response for {} {{}}", api.response.name);
    line!(out, "}}");
}

fn root(out: &mut String, api: &Api, message: &Message) {
    let Range { min, max } = message.versions;
    let flexible = message.flexible.map_or("i16::MAX".to_owned(), |from| from.to_string());
    line!(out, "impl Message for {} {{", message.name);
    line!(out, "const API_KEY: ApiKey = ApiKey::{};", api.name);
    line!(out, "const NAME: &'static str = \"{}\";", message.name);
    line!(out, "const VERSIONS: VersionRange = VersionRange {{ min: {min}, max: {max} }};");
    line!(out, "const FLEXIBLE_FROM: i16 = {flexible};");
    line!(out, "fn read(r: &mut Reader) -> Result<Self, DecodeError> {{ Self::read_struct(r) }}");
    line!(out, "fn write(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {{ self.write_struct(w) }}");
    line!(out, "}}");
}

fn definition(out: &mut String, message: &Message, holder: &Struct) {
    if holder.name == message.name {
        line!(out, "/// The message itself.");
    } else {
        line!(out, "/// Part of [`{}`].", message.name);
    }
    line!(out, "#[derive(Debug, Clone, PartialEq)]\npub struct {} {{", holder.name);
    for field in &holder.fields {
        line!(out, "/// {}", field_doc(message, field));
        line!(out, "pub {}: {},", field.ident(), field.rust());
    }
    line!(out, "}}");
    line!(out, "impl Default for {} {{\nfn default() -> Self {{ Self {{", holder.name);
    for field in &holder.fields {
        line!(out, "{}: {},", field.ident(), default(field));
    }
    line!(out, "}} }}\n}}");
}

fn field_doc(message: &Message, field: &Field) -> String {
    let Range { min, max } = field.versions;
    let mut text = if field.versions == message.versions {
        "All versions".to_owned()
    } else if max == message.versions.max {
        format!("From version {min}")
    } else if min == max {
        format!("Version {min}")
    } else {
        format!("Versions {min} to {max}")
    };
    if let Some(null) = field.null {
        text.push_str(", may be null");
        if null.min > min {
            let _ = write!(text, " from {}", null.min);
        }
        if null.max < max {
            let _ = write!(text, " to {}", null.max);
        }
    }
    let default = default(field);
    if !default.contains("::") && !["0", "false", "0.0"].contains(&default.as_str()) {
        let _ = write!(text, ", default `{default}`");
    }
    if field.ignorable {
        text.push_str(", dropped where it does not exist");
    }
    text.push('.');
    text
}

/// `if v >= 3 { value } else { otherwise }`, or only `value`.
fn choose(condition: Option<String>, value: &str, otherwise: &str) -> String {
    match condition {
        None => value.to_owned(),
        Some(condition) => format!("if {condition} {{ {value} }} else {{ {otherwise} }}"),
    }
}

/// The version is a parameter of the code only where something depends on it.
fn bind_version(out: &mut String, code: &str, from: &str) {
    if code.contains("v >= ") || code.contains("v <= ") || code.contains("v == ") || code.contains("(&v)") {
        line!(out, "let v = {from}.version();");
    }
}

fn reading(out: &mut String, message: &Message, holder: &Struct) {
    let mut code = String::new();
    let tagged: Vec<_> = holder.fields.iter().filter(|field| field.tag.is_some()).collect();
    let binding = if tagged.is_empty() { "let out" } else { "let mut out" };
    line!(code, "{binding} = Self {{");
    for field in &holder.fields {
        let value = match field.tag {
            Some(_) => default(field),
            None => choose(
                field.versions.condition(holder.versions),
                &read(message, holder, field),
                &default(field),
            ),
        };
        line!(code, "{}: {value},", field.ident());
    }
    line!(code, "}};");
    if tagged.is_empty() {
        if message.flexible.is_some() {
            line!(code, "r.skip_tags(\"{}.tags\")?;", holder.name);
        }
    } else {
        let tags = format!("\"{}.tags\"", holder.name);
        line!(code, "let mut tags = r.tags({tags})?;");
        line!(code, "while let Some(tag) = r.next_tag(&mut tags, {tags})? {{ match tag.number {{");
        for field in tagged {
            let number = field.tag.unwrap_or_default();
            let guard = field.versions.condition(holder.versions);
            let guard_text = guard.as_ref().map_or(String::new(), |guard| format!(" if {guard}"));
            line!(code, "{number}{guard_text} => out.{} = {},", field.ident(), read(message, holder, field));
            if guard.is_some() {
                let label = label(holder, field);
                line!(
                    code,
                    "{number} => return Err(r.fault({label}, DecodeErrorKind::TagNotInVersion({number}))),"
                );
            }
        }
        line!(code, "_ => r.skip_tag(&tag),");
        line!(code, "}}\nr.end_tag(&tag, {tags})?; }}");
    }
    line!(code, "Ok(out)");
    line!(out, "pub(super) fn read_struct(r: &mut Reader) -> Result<Self, DecodeError> {{");
    bind_version(out, &code, "r");
    out.push_str(&code);
    line!(out, "}}");
}

fn writing(out: &mut String, message: &Message, holder: &Struct) {
    let mut code = String::new();
    for field in &holder.fields {
        let condition = field.versions.condition(holder.versions);
        let refusal =
            format!("if {} {{ return Err(w.not_in_version({})); }}", is_set(field), label(holder, field));
        let refusal = if field.ignorable { "" } else { &refusal };
        match (field.tag, condition) {
            (None, None) => {
                line!(code, "{}", write(holder, field));
            }
            (None, Some(condition)) if refusal.is_empty() => {
                line!(code, "if {condition} {{ {} }}", write(holder, field));
            }
            (None, Some(condition)) => {
                line!(
                    code,
                    "if {condition} {{ {} }} else {refusal_block}",
                    write(holder, field),
                    refusal_block = refusal
                );
            }
            (Some(_), Some(condition)) if !refusal.is_empty() => {
                line!(
                    code,
                    "if !({condition}) && {} {{ return Err(w.not_in_version({})); }}",
                    is_set(field),
                    label(holder, field)
                );
            }
            (Some(_), _) => {}
        }
    }
    let mut tagged: Vec<_> = holder.fields.iter().filter_map(|field| Some((field.tag?, field))).collect();
    tagged.sort_by_key(|(tag, _)| *tag);
    if tagged.is_empty() {
        if message.flexible.is_some() {
            line!(code, "w.tag_count(0);");
        }
    } else {
        let mut terms = Vec::new();
        for (tag, field) in &tagged {
            let present = match field.versions.condition(holder.versions) {
                None => is_set(field),
                Some(condition) => format!("{condition} && {}", is_set(field)),
            };
            line!(code, "let tag_{tag} = {present};");
            terms.push(format!("u32::from(tag_{tag})"));
        }
        line!(code, "w.tag_count({});", terms.join(" + "));
        for (tag, field) in &tagged {
            line!(code, "if tag_{tag} {{ let start = w.begin_tag({tag}); {}", write(holder, field));
            line!(code, "w.end_tag(start, {})?; }}", label(holder, field));
        }
    }
    line!(code, "Ok(())");
    line!(out, "pub(super) fn write_struct(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {{");
    bind_version(out, &code, "w");
    out.push_str(&code);
    line!(out, "}}");
}
