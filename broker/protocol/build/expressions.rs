//! The pieces of Rust that a field turns into.

use crate::model::{Base, Field, Message, Range, Struct};

/// Where a field is, for error messages: `"Struct.field"`.
pub fn label(holder: &Struct, field: &Field) -> String {
    format!("\"{}.{}\"", holder.name, field.name)
}

/// The default value.
pub fn default(field: &Field) -> String {
    if field.default.as_deref() == Some("null") {
        return "None".to_owned();
    }
    let value = match (&field.base, &field.default) {
        _ if field.array => "Vec::new()".to_owned(),
        (Base::Error, Some(value)) => format!("ErrorCode({value})"),
        (_, Some(value)) => value.clone(),
        (Base::Bool, None) => "false".to_owned(),
        (Base::F64, None) => "0.0".to_owned(),
        (Base::String, None) => "KString::new()".to_owned(),
        (Base::Bytes | Base::Records, None) => "Bytes::new()".to_owned(),
        (Base::RecordParts, None) => "Records::new()".to_owned(),
        (Base::Uuid, None) => "Uuid::ZERO".to_owned(),
        (Base::Error, None) => "ErrorCode::NONE".to_owned(),
        (Base::Struct(name), None) => format!("{name}::default()"),
        (_, None) => "0".to_owned(),
    };
    if field.null.is_some() { format!("Some({value})") } else { value }
}

/// A condition that is true if the field does not hold its default.
pub fn is_set(field: &Field) -> String {
    let name = field.ident();
    let plain = default(field);
    if plain == "None" {
        return format!("self.{name}.is_some()");
    }
    if field.null.is_some() {
        return format!("self.{name}.as_ref().is_none_or(|value| !value.is_empty())");
    }
    match field.base {
        _ if field.array => format!("!self.{name}.is_empty()"),
        Base::String | Base::Bytes => format!("!self.{name}.is_empty()"),
        Base::Bool if plain == "false" => format!("self.{name}"),
        Base::Bool => format!("!self.{name}"),
        _ => format!("self.{name} != {plain}"),
    }
}

/// Reads the field in a version that has it.
pub fn read(message: &Message, holder: &Struct, field: &Field) -> String {
    let label = label(holder, field);
    let plain = read_as(message, field, &label, false);
    let Some(null) = field.null else { return plain };
    let nullable = read_as(message, field, &label, true);
    match null.condition(field.versions) {
        None => nullable,
        Some(condition) => format!("if {condition} {{ {nullable} }} else {{ Some({plain}) }}"),
    }
}

fn read_as(message: &Message, field: &Field, label: &str, nullable: bool) -> String {
    let prefix = if nullable { "nullable_" } else { "" };
    if field.array {
        let (least, element) = match &field.base {
            Base::Struct(name) => (least_struct(message, name), format!("{name}::read_struct")),
            base => (least_base(message, base, false), format!("|r| r.{}({label})", base.method())),
        };
        return format!("r.{prefix}array({label}, {}, {element})?", least.max(1));
    }
    match &field.base {
        Base::Struct(name) if nullable => format!("r.nullable_struct({label}, {name}::read_struct)?"),
        Base::Struct(name) => format!("{name}::read_struct(r)?"),
        Base::Records => format!("r.nullable_bytes({label})?"),
        base => format!("r.{prefix}{}({label})?", base.method()),
    }
}

/// Writes the field in a version that has it.
pub fn write(holder: &Struct, field: &Field) -> String {
    let label = label(holder, field);
    let name = field.ident();
    let method = field.base.method();
    let nullable = field.null.map(|null| null.condition(field.versions).unwrap_or_else(|| "true".to_owned()));
    if field.array {
        let element = match &field.base {
            Base::Struct(_) => "|w, item| item.write_struct(w)".to_owned(),
            base if base.is_fixed() => format!("|w, item| {{ w.{method}(*item); Ok(()) }}"),
            _ => format!("|w, item| w.{method}(item, {label})"),
        };
        return match nullable {
            Some(nullable) => format!("w.nullable_array(&self.{name}, {nullable}, {label}, {element})?;"),
            None => format!("w.array(&self.{name}, {label}, {element})?;"),
        };
    }
    match (&field.base, nullable) {
        (Base::Struct(_), Some(nullable)) => {
            format!("w.nullable_struct(&self.{name}, {nullable}, {label}, |w, item| item.write_struct(w))?;")
        }
        (Base::Struct(_), None) => format!("self.{name}.write_struct(w)?;"),
        (_, Some(nullable)) => format!("w.nullable_{method}(&self.{name}, {nullable}, {label})?;"),
        (base, None) if base.is_fixed() => format!("w.{method}(self.{name});"),
        _ => format!("w.{method}(&self.{name}, {label})?;"),
    }
}

/// The smallest number of bytes that a structure takes in any version in which it occurs.
fn least_struct(message: &Message, name: &str) -> usize {
    let Some(holder) = message.find(name) else { return 1 };
    let Range { min, max } = holder.versions;
    (min..=max).map(|version| struct_at(message, holder, version)).min().unwrap_or(1)
}

fn struct_at(message: &Message, holder: &Struct, version: i16) -> usize {
    let present =
        holder.fields.iter().filter(|field| field.tag.is_none() && field.versions.contains(version));
    let fields: usize = present.map(|field| field_at(message, field, version)).sum();
    fields + usize::from(message.is_flexible(version))
}

fn field_at(message: &Message, field: &Field, version: i16) -> usize {
    let flexible = message.is_flexible(version);
    if field.array {
        return if flexible { 1 } else { 4 };
    }
    match &field.base {
        Base::Struct(_) if field.null.is_some_and(|null| null.contains(version)) => 1,
        Base::Struct(name) => message.find(name).map_or(0, |inner| struct_at(message, inner, version)),
        base => least_base(message, base, flexible),
    }
}

/// The smallest number of bytes of a value; `flexible` matters for those with a length.
fn least_base(message: &Message, base: &Base, flexible: bool) -> usize {
    match base {
        Base::Bool | Base::I8 => 1,
        Base::I16 | Base::U16 | Base::Error => 2,
        Base::I32 => 4,
        Base::I64 | Base::F64 => 8,
        Base::Uuid => 16,
        _ if flexible || message.flexible.is_some() => 1,
        Base::String => 2,
        _ => 4,
    }
}
